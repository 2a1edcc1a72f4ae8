package org.apache.kafka.common.utils;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.function.Supplier;

/**
 * Stands before Kafka's class of this name on the class path of a test's broker: a wall clock that a test can set.
 *
 * Its offset in milliseconds is the little-endian long at the start of the file that the property
 * {@code rocketshim.clock.offset} names, looked at each time. The monotonic clock is the machine's.
 */
class SystemTime implements Time {
    private static final SystemTime SYSTEM_TIME = new SystemTime();
    private static final VarHandle LONG =
        MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    private final ByteBuffer offset;

    private SystemTime() {
        try (FileChannel file = FileChannel.open(Path.of(System.getProperty("rocketshim.clock.offset")))) {
            offset = file.map(FileChannel.MapMode.READ_ONLY, 0, Long.BYTES);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    public static SystemTime getSystemTime() {
        return SYSTEM_TIME;
    }

    @Override
    public long milliseconds() {
        return System.currentTimeMillis() + (long) LONG.getVolatile(offset, 0);
    }

    @Override
    public long nanoseconds() {
        return System.nanoTime();
    }

    @Override
    public void sleep(long ms) {
        Utils.sleep(ms);
    }

    @Override
    public void waitObject(Object lock, Supplier<Boolean> condition, long deadlineMs) throws InterruptedException {
        synchronized (lock) {
            while (!condition.get()) {
                long remainingMs = deadlineMs - milliseconds();
                if (remainingMs <= 0) {
                    throw new org.apache.kafka.common.errors.TimeoutException("the deadline has passed");
                }
                lock.wait(remainingMs);
            }
        }
    }
}
