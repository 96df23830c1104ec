import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/** Builds a table of objects, changes and drops many, and prints sums that are the same on every run. Argument: MiB. */
public final class Objects {
    private record Entry(int key, String name, long[] values) {}

    private static Entry entry(int key, SplittableRandom random) {
        long[] values = random.longs(20).toArray();
        return new Entry(key, "entry " + key + " " + (values[0] & 0xFFFF), values);
    }

    private static long sum(Iterable<Entry> entries) {
        long sum = 0;
        for (Entry entry : entries) {
            sum = sum * 31 + entry.key() + entry.name().hashCode();
            for (long value : entry.values()) {
                sum += value;
            }
        }
        return sum;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]) * (1 << 20) / 330; // bytes of an entry in the map
        var random = new SplittableRandom(1);
        Map<Integer, Entry> table = new HashMap<>();
        for (int key = 0; key < count; key++) {
            table.put(key, entry(key, random));
        }
        System.out.println("made " + table.size() + " " + sum(table.values()));
        for (int round = 0; round < 3; round++) {
            for (int change = 0; change < count / 8; change++) {
                int key = round * (count / 8) + change;
                table.put(key, entry(key, random));
            }
            System.out.println("changed " + sum(table.values()));
        }
        List<Thread> threads = new ArrayList<>();
        long[] found = new long[2];
        for (int thread = 0; thread < found.length; thread++) {
            int id = thread;
            threads.add(new Thread(() -> {
                var choices = new SplittableRandom(id);
                for (int lookup = 0; lookup < 100_000; lookup++) {
                    int key = (int) (choices.nextInt(count) * (long) choices.nextInt(1 << 20) >> 20);
                    found[id] += table.get(key).values()[lookup % 20];
                }
            }));
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("found " + found[0] + " " + found[1]);
        table.keySet().removeIf(key -> key % 3 != 0);
        System.gc();
        System.out.println("kept " + table.size() + " " + sum(table.values()));
    }
}
