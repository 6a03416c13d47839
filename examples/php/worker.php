<?php

/*
 * A worker that works only while it leads: PHP with PDO. Copy it.
 *
 *     ./run          (php worker.php)
 *
 * PGHOST, PGUSER, PGDATABASE and so on say where the database is (libpq, below PDO, reads them); LEASE_ROLE, LEASE_TTL
 * (seconds), WORK_MS and WORKER_NAME are optional. SIGTERM or SIGINT: finish the job in hand, give the lease back,
 * exit 0.
 *
 * PHP has no threads, so the heartbeat comes from the work itself: it is done in slices, with a tick() between them. A
 * forked child could renew on its own, and that is what must not be: when the parent hangs, is stopped or killed, the
 * child would keep the lease for a worker that does nothing. Here the process that works renews, and a slice that hangs
 * for longer than the ttl loses the lease. So keep the slices well below a third of the ttl.
 *
 * Two clocks guard the work. The worker's own deadline stops it early, but a pause can come right after the look at the
 * clock. The proof is the fence: the transaction that writes carries the claim in the setting leader_lease.fence, and
 * the database refuses it (SQLSTATE LF001) when that term is over. The UPDATE itself knows nothing of leases.
 */

declare(strict_types=1);

ini_set('display_errors', 'stderr');

define('ROLE', getenv('LEASE_ROLE') ?: 'mail');
define('TTL', (float) (getenv('LEASE_TTL') ?: 10));
define('BEAT', TTL / 3); // so two renewals may fail before the term is lost
define('WORK', (float) (getenv('WORK_MS') ?: 200) / 1000);
const SLICE = 0.05;
// New for every run: two processes with one holder id would both lead.
define('HOLDER', (getenv('WORKER_NAME') ?: 'php') . '-' . bin2hex(random_bytes(4)));

/** Asked to leave? A signal says yes, and also cuts usleep() short, so waiting ends at once. */
function leaving(bool $yes = false): bool
{
    static $leaving = false;
    return $leaving = $leaving || $yes;
}

pcntl_async_signals(true);
pcntl_signal(SIGTERM, fn () => leaving(true));
pcntl_signal(SIGINT, fn () => leaving(true));

/**
 * Seconds on CLOCK_MONOTONIC: nobody can set it, but it stands still while the machine is suspended. After a suspend
 * the worker may believe in its term for too long, and then only the fence stops it. PHP offers no CLOCK_BOOTTIME.
 */
function now(): float
{
    return hrtime(true) / 1e9;
}

function nap(float $seconds): void
{
    usleep((int) max($seconds * 1e6, 0));
}

function say(string $event): void
{
    fwrite(STDOUT, HOLDER . " $event\n");
}

function oneLine(Throwable $e): string
{
    return trim(preg_replace('/\s+/', ' ', $e->getMessage()));
}

class TermOver extends Exception
{
}

function connect(): PDO
{
    // PDO cannot limit how long it waits for an answer. The network's silence is ended here, a slow statement in ask(),
    // waiting in a pooler by its own query_wait_timeout. Meanwhile nothing is done that a deadline could come too late
    // for; but no signal is heeded either.
    return new PDO('pgsql:keepalives_idle=5;keepalives_interval=2;tcp_user_timeout=10000', null, null, [
        PDO::ATTR_TIMEOUT => 2, // seconds, to connect
        // PDO puts the parameters into the text, quoted, and libpq sends that as it is: nothing is prepared in the
        // server, where a pooler in transaction mode would lose it, and a text may have two statements, as in ask().
        PDO::ATTR_EMULATE_PREPARES => true,
    ]);
}

/**
 * The first row of a statement, or null. A text of two statements is one message and one transaction, also for a
 * pooler, so the limit is for this statement alone; and no pause of this process can leave the transaction open.
 */
function ask(PDO $db, float $limit, string $sql, mixed ...$args): ?array
{
    $statement = $db->prepare(sprintf('SET LOCAL statement_timeout = %d; %s', max($limit * 1000, 1), $sql));
    $statement->execute($args);
    return $statement->fetch(PDO::FETCH_NUM) ?: null;
}

/** One term of leadership. PDO makes an int of a bigint, never a float (a string where an int has 32 bits). */
class Term
{
    private float $nextBeat;
    private ?PDO $db = null;

    public function __construct(public readonly int $token, private float $deadline)
    {
        $this->nextBeat = now() + BEAT;
    }

    public function left(): float
    {
        return $this->deadline - now();
    }

    /** To be called again and again during the work: renews when it is time, and throws when the term is over. */
    public function tick(): void
    {
        if (now() >= $this->nextBeat && $this->left() > 0) {
            $this->beat();
        }
        $this->check();
    }

    public function check(): void
    {
        if ($this->left() <= 0) {
            throw new TermOver('its deadline has passed');
        }
    }

    /** On a connection of its own: a renewal inside of a transaction of the work would count when that commits. */
    private function beat(): void
    {
        try {
            $this->db ??= connect();
            $asked = now(); // before the request: the server's ttl starts later, so our deadline comes first
            [$ttl] = ask(
                $this->db,
                min(BEAT, $this->left()),
                'SELECT EXTRACT(epoch FROM lease_renew(?, ?, ?, make_interval(secs => ?)))',
                ROLE,
                HOLDER,
                $this->token,
                TTL
            );
        } catch (PDOException $e) {
            // An error or no answer changes nothing: the old deadline stands, and until then we try again.
            fwrite(STDERR, HOLDER . ' heartbeat: ' . oneLine($e) . "\n");
            $this->db = null;
            $this->nextBeat = now() + TTL / 20;
            return;
        }
        if ($ttl === null) {
            throw new TermOver('it was not renewed');
        }
        $this->deadline = $asked + (float) $ttl;
        $this->nextBeat = $asked + BEAT;
    }
}

/** Tries until the lease is ours; null when leaving. A losing attempt costs the server the reading of a row. */
function compete(PDO $db): ?Term
{
    while (!leaving()) {
        $asked = now();
        [$token, $ttl, $retry] = ask(
            $db,
            max(TTL, 2),
            'SELECT token, EXTRACT(epoch FROM ttl), EXTRACT(epoch FROM retry_after)
               FROM lease_attempt(?, ?, make_interval(secs => ?))',
            ROLE,
            HOLDER,
            TTL
        );
        if ($token !== null) {
            return new Term($token, $asked + (float) $ttl);
        }
        nap(min((float) $retry, 1, TTL / 2) + random_int(0, 200) / 1000);
    }
    return null;
}

/** What stands for the work, in slices. */
function work(Term $term, float $seconds): void
{
    for ($end = now() + $seconds; now() < $end;) {
        nap(min($end - now(), SLICE));
        $term->tick();
    }
}

/** Writes the result. True if the job was still open. */
function complete(PDO $db, Term $term, int $slot): bool
{
    $claim = json_encode(['role' => ROLE, 'holder' => HOLDER, 'token' => $term->token], JSON_THROW_ON_ERROR);
    $db->beginTransaction();
    $term->check(); // a pooler without a free server connection may have kept us waiting
    // All for this transaction only (true). The claim is what a fence is taken by at the first write. If we are paused
    // before the COMMIT, the open fence holds a takeover back: the server shall not wait for us for longer than a ttl.
    ask(
        $db,
        $term->left(),
        "SELECT set_config('leader_lease.fence', ?, true),
                set_config('idle_in_transaction_session_timeout', ?, true)",
        $claim,
        (string) ceil(TTL * 1000)
    );
    $update = $db->prepare(
        'UPDATE job SET worker = ?, completed_at = clock_timestamp() WHERE slot = ? AND completed_at IS NULL'
    );
    $update->execute([HOLDER, $slot]);
    $db->commit();
    return $update->rowCount() === 1;
}

/** Works until the term is over, the connection is lost, or we leave. */
function lead(PDO $db, Term $term): void
{
    say("leads token={$term->token}");
    try {
        while (!leaving()) {
            $term->tick();
            $row = ask($db, $term->left(), 'SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1');
            if ($row === null) {
                nap(min(1, BEAT));
                continue;
            }
            work($term, WORK);
            if (complete($db, $term, $row[0])) {
                say("completed slot={$row[0]} token={$term->token}");
            }
        }
        [$released] = ask($db, min(BEAT, 2), 'SELECT lease_release(?, ?, ?)', ROLE, HOLDER, $term->token);
        say($released ? "released token={$term->token}" : "lost token={$term->token}: it had ended before");
    } catch (TermOver | PDOException $e) {
        say("lost token={$term->token}: " . oneLine($e));
        if ($e instanceof PDOException && $e->getCode() !== 'LF001') {
            throw $e;
        }
        if ($db->inTransaction()) {
            $db->rollBack();
        }
    }
}

$backoff = 0.1;
$failed = -INF;
while (!leaving()) {
    $db = null;
    try {
        $db = connect();
        while ($term = compete($db)) {
            lead($db, $term);
        }
    } catch (Throwable $e) {
        if (leaving()) {
            break;
        }
        say('reconnecting: ' . oneLine($e));
        // A term is no success: what fails may be the work, such as a table that is missing.
        $backoff = now() - $failed < 10 ? min($backoff * 2, 2) : 0.1;
        $failed = now();
        nap($backoff * random_int(500, 1500) / 1000);
    }
}
say('exits');
