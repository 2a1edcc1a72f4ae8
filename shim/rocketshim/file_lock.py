"""Exclusive locks on open files, on every system. The system releases a lock when the process that holds it ends."""

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt
    import os

    _FAR = 1 << 30  # a locked byte cannot be read by others, so it lies beyond what the file has

    def lock(descriptor: int, *, wait: bool = False) -> None:
        """Lock a file. Raises OSError if another has it, unless `wait`: LK_LOCK alone gives up after 10 s."""
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            if not wait:
                raise
            lock(descriptor, wait=True)

    def unlock(descriptor: int) -> None:
        """Release a file now: a process that was forked meanwhile has it open, too, so closing it is not enough."""
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]

else:

    def lock(descriptor: int, *, wait: bool = False) -> None:
        """Lock a file. Raises OSError if another has it, unless `wait`."""
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(descriptor: int) -> None:
        """Release a file now: a process that was forked meanwhile has it open, too, so closing it is not enough."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)


__all__ = ["lock", "unlock"]
