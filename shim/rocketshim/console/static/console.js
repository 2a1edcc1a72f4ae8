// Add the browser's own time to each time of a page, which is in UTC. Without this script only UTC is shown.
"use strict";
const own = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function addOwnTimes() {
  for (const time of document.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(time.dateTime);
    time.title = own.format(at);
    if (at.getTimezoneOffset() !== 0) {
      const clock = at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
      time.nextElementSibling?.append(`, ${clock}`);
    }
  }
}

addOwnTimes();
new MutationObserver(addOwnTimes).observe(document.body, { childList: true, subtree: true });
