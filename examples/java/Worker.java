import static java.util.concurrent.TimeUnit.MICROSECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.security.SecureRandom;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A worker that works only while it leads: Java with JDBC. Copy it.
 *
 * <p>Start it with {@code ./run}. PGHOST, PGUSER, PGDATABASE and so on say where the database is; LEASE_ROLE, LEASE_TTL
 * (seconds), WORK_MS and WORKER_NAME are optional. SIGTERM or SIGINT: finish the job in hand, give the lease back, exit
 * 0. (There is a ttl and 2 s for that. Past it the process ends with 1.)
 *
 * <p>Two clocks guard the work. The worker's own deadline stops it early, but a pause (a garbage collection, say) can
 * come right after the look at the clock. The proof is the fence: the write carries the token of the term, and the
 * database refuses it (SQLSTATE LF001) when that term is over.
 */
public final class Worker {
    private static final Map<String, String> ENV = System.getenv();
    private static final String ROLE = ENV.getOrDefault("LEASE_ROLE", "mail");
    private static final double TTL_SECONDS = Double.parseDouble(ENV.getOrDefault("LEASE_TTL", "10"));
    private static final long TTL = (long) (TTL_SECONDS * 1e6); // all other times are in microseconds
    private static final long BEAT = TTL / 3; // so two renewals may fail before the term is lost
    private static final long WORK = Long.parseLong(ENV.getOrDefault("WORK_MS", "200")) * 1000;
    // New for every run: two processes with one holder id would both lead.
    private static final String HOLDER =
            String.format("%s-%08x", ENV.getOrDefault("WORKER_NAME", "java"), new SecureRandom().nextInt());

    /** Its end is the wish to leave: it cuts short what waits, not the job in hand. */
    private static final CountDownLatch leaving = new CountDownLatch(1);

    private static final class TermOver extends Exception {
        private static final long serialVersionUID = 1;

        TermOver(String why) {
            super(why);
        }
    }

    /** One term of leadership, with its heartbeat: a thread and a connection of its own, so that nothing delays it. */
    private static final class Term {
        final long token; // a bigint is a long, never a double
        private final CountDownLatch over = new CountDownLatch(1);
        private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        private volatile long deadline;
        private volatile Connection db;

        Term(long token, long deadline) {
            this.token = token;
            this.deadline = deadline;
        }

        long left() {
            return over.getCount() == 0 ? 0 : deadline - now();
        }

        void check() throws TermOver {
            if (left() <= 0) {
                throw new TermOver(over.getCount() == 0 ? "it was not renewed" : "its deadline has passed");
            }
        }

        /** What stands for the work. Whatever it is, it has to look at the term now and then. */
        void work(long time) throws TermOver, InterruptedException {
            for (long end = now() + time; now() < end; ) {
                check();
                over.await(Math.min(end - now(), left()), MICROSECONDS); // a renewal may move the deadline: look again
            }
            check();
        }

        void start() {
            // Not at a fixed rate: after a pause that would make up for all the beats that were missed.
            timer.scheduleWithFixedDelay(this::beat, BEAT, BEAT, MICROSECONDS);
        }

        private void beat() {
            try {
                while (left() > 0 && !renewed()) {
                    over.await(TTL / 20, MICROSECONDS);
                }
            } catch (InterruptedException e) {
                over.countDown();
            }
        }

        /** False after an error or no answer. That changes nothing: the old deadline stands; until then we retry. */
        private boolean renewed() {
            try {
                Connection current = db == null ? db = connect() : db;
                if (left() <= 0) {
                    disconnect(); // connecting took too long, perhaps for end() as well
                    return false;
                }
                long asked = now();
                Object[] row = ask(current, Math.min(BEAT, left()),
                        "SELECT (EXTRACT(epoch FROM lease_renew(?, ?, ?, make_interval(secs => ?))) * 1000000)::bigint",
                        ROLE, HOLDER, token, TTL_SECONDS);
                if (row[0] == null) {
                    over.countDown();
                } else {
                    deadline = asked + (Long) row[0];
                }
                return true;
            } catch (SQLException | RuntimeException e) { // whatever left here would end the beats without a word
                if (left() > 0) {
                    System.err.println(HOLDER + " heartbeat: " + oneLine(e));
                }
                disconnect();
                return false;
            }
        }

        /** Whatever happened: no renewal after this, or a worker that does nothing would lead. */
        void end() throws InterruptedException {
            over.countDown();
            timer.shutdownNow();
            disconnect();
            timer.awaitTermination(2, SECONDS);
            disconnect(); // the one that was just being made
        }

        private void disconnect() {
            Connection old = db;
            db = null;
            try {
                if (old != null) {
                    old.abort(Runnable::run); // unlike close(), also while another thread waits for an answer
                }
            } catch (SQLException e) {
                // it is gone
            }
        }
    }

    /**
     * CLOCK_MONOTONIC: nobody can set it, but it stands still while the machine is suspended. After a suspend the
     * worker may believe in its term for too long, and then only the fence stops it. Java offers no CLOCK_BOOTTIME.
     */
    private static long now() {
        return System.nanoTime() / 1000;
    }

    private static void say(String event, Object... args) {
        System.out.println(HOLDER + " " + String.format(event, args)); // println flushes
    }

    private static String oneLine(Exception e) {
        return (e.getMessage() + (e.getCause() == null ? "" : " " + e.getCause().getMessage())).replaceAll("\\s+", " ");
    }

    /** JDBC does not read the libpq variables, and it knows no Unix sockets: PGHOST has to be a name or an address. */
    private static Connection connect() throws SQLException {
        Properties p = new Properties();
        p.setProperty("user", ENV.getOrDefault("PGUSER", System.getProperty("user.name")));
        p.setProperty("password", ENV.getOrDefault("PGPASSWORD", ""));
        p.setProperty("sslmode", ENV.getOrDefault("PGSSLMODE", "prefer"));
        p.setProperty("ApplicationName", HOLDER);
        // Unnamed statements only: a pooler in transaction mode would lose a named one between two transactions.
        p.setProperty("prepareThreshold", "0");
        p.setProperty("tcpKeepAlive", "true");
        p.setProperty("connectTimeout", "2"); // seconds, as the next
        p.setProperty("socketTimeout", "2"); // until ask() sets a finer one
        return DriverManager.getConnection( // in autocommit: each statement is a transaction of its own
                String.format("jdbc:postgresql://%s:%s/%s",
                        ENV.getOrDefault("PGHOST", "localhost"), ENV.getOrDefault("PGPORT", "5432"),
                        ENV.getOrDefault("PGDATABASE", p.getProperty("user"))), p);
    }

    /** The first row of a statement, or null. A NULL in it is a null: getLong() would have made it 0. */
    private static Object[] ask(Connection db, long limit, String sql, Object... args) throws SQLException {
        // Past the limit the driver gives the connection up: the next statement must not read this one's answer.
        db.setNetworkTimeout(Runnable::run, (int) Math.max(limit / 1000, 1));
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 0; i < args.length; i++) {
                statement.setObject(i + 1, args[i]);
            }
            try (ResultSet rows = statement.executeQuery()) {
                if (!rows.next()) {
                    return null;
                }
                Object[] row = new Object[rows.getMetaData().getColumnCount()];
                for (int i = 0; i < row.length; i++) {
                    row[i] = rows.getObject(i + 1);
                }
                return row;
            }
        }
    }

    /** Tries until the lease is ours; null when leaving. A losing attempt costs the server the reading of a row. */
    private static Term compete(Connection db) throws SQLException, InterruptedException {
        while (leaving.getCount() > 0) {
            long asked = now(); // before the request: the server's ttl starts later, so our deadline comes first
            Object[] row = ask(db, Math.max(TTL, 2_000_000),
                    "SELECT token, (EXTRACT(epoch FROM ttl) * 1000000)::bigint,"
                            + " (EXTRACT(epoch FROM retry_after) * 1000000)::bigint"
                            + " FROM lease_attempt(?, ?, make_interval(secs => ?))",
                    ROLE, HOLDER, TTL_SECONDS);
            if (row[0] != null) {
                return new Term((Long) row[0], asked + (Long) row[1]);
            }
            long jitter = ThreadLocalRandom.current().nextLong(200_000);
            leaving.await(Math.min((Long) row[2], Math.min(1_000_000, TTL / 2)) + jitter, MICROSECONDS);
        }
        return null;
    }

    /** Works until the term is over, the connection is lost, or we leave. */
    private static void lead(Connection db, Term term) throws SQLException, InterruptedException {
        say("leads token=%d", term.token);
        term.start();
        try {
            while (leaving.getCount() > 0) {
                term.check();
                Object[] job = ask(db, term.left(),
                        "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1");
                if (job == null) {
                    leaving.await(Math.min(1_000_000, term.left()), MICROSECONDS);
                    continue;
                }
                term.work(WORK);
                Object[] done = ask(db, term.left(),
                        "UPDATE job SET worker = ?, completed_at = clock_timestamp(),"
                                + " completed_by_token = lease_require_fence(?, ?, ?)"
                                + " WHERE slot = ? AND completed_at IS NULL RETURNING slot",
                        HOLDER, ROLE, HOLDER, term.token, job[0]);
                if (done != null) {
                    say("completed slot=%d token=%d", done[0], term.token);
                }
            }
            Object[] row = ask(db, Math.min(BEAT, 2_000_000),
                    "SELECT lease_release(?, ?, ?)", ROLE, HOLDER, term.token);
            say((Boolean) row[0] ? "released token=%d" : "lost token=%d: it had ended before", term.token);
        } catch (TermOver e) {
            say("lost token=%d: %s", term.token, oneLine(e));
        } catch (SQLException e) {
            say("lost token=%d: %s", term.token, oneLine(e));
            if (!"LF001".equals(e.getSQLState())) {
                throw e;
            }
        } finally {
            term.end();
        }
    }

    public static void main(String[] args) throws InterruptedException {
        leaveOnSignal(Thread.currentThread());
        long backoff = 100_000;
        long failed = now() - 10_000_000;
        while (leaving.getCount() > 0) {
            try (Connection db = connect()) {
                for (Term term; (term = compete(db)) != null; ) {
                    lead(db, term);
                }
            } catch (SQLException | RuntimeException e) {
                if (leaving.getCount() == 0) {
                    break;
                }
                say("reconnecting: %s", oneLine(e));
                // A term is no success: what fails may be the work, such as a table that is missing.
                backoff = now() - failed < 10_000_000 ? Math.min(backoff * 2, 2_000_000) : 100_000;
                failed = now();
                leaving.await((long) (backoff * ThreadLocalRandom.current().nextDouble(0.5, 1.5)), MICROSECONDS);
            }
        }
        say("exits");
    }

    /**
     * A JVM that got SIGTERM runs its shutdown hooks beside its threads and then exits with 143. So this hook waits for
     * the main thread and halts with 0 itself; hooks of others may be cut short by that. (sun.misc.Signal could catch
     * the signal instead, but it is no supported interface.)
     */
    private static void leaveOnSignal(Thread main) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (!main.isAlive()) {
                return; // no signal: main has died of an error, and the exit code shall say so
            }
            leaving.countDown();
            try {
                main.join(TTL / 1000 + 2000);
            } catch (InterruptedException e) {
                // nobody interrupts a hook
            }
            Runtime.getRuntime().halt(main.isAlive() ? 1 : 0);
        }));
    }
}
