/*
 * A worker that works only while it leads: Node.js with pg. Copy it.
 *
 *     ./run          (npm ci, then node worker.js)
 *
 * PGHOST, PGUSER, PGDATABASE and so on say where the database is; LEASE_ROLE, LEASE_TTL (seconds), WORK_MS and
 * WORKER_NAME are optional. SIGTERM or SIGINT: finish the job in hand, give the lease back, exit 0.
 *
 * Two clocks guard the work. The worker's own deadline stops it early, but a pause can come right after the look at
 * the clock. The proof is the fence: the write carries the token of the term, and the database refuses it (SQLSTATE
 * LF001) when that term is over.
 *
 * Tokens and slots are bigint. pg hands them out as strings and takes strings, so they never become a Number.
 */

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const ROLE = process.env.LEASE_ROLE || "mail";
const TTL = Number(process.env.LEASE_TTL || 10) * 1000; // all times in milliseconds
const BEAT = TTL / 3; // so two renewals may fail before the term is lost
const WORK = Number(process.env.WORK_MS || 200);
// New for every run: two processes with one holder id would both lead.
const HOLDER = `${process.env.WORKER_NAME || "node"}-${randomBytes(4).toString("hex")}`;

const leaving = new AbortController();
process.on("SIGTERM", () => leaving.abort());
process.on("SIGINT", () => leaving.abort());

// CLOCK_MONOTONIC: nobody can set it, but it stands still while the machine is suspended. After a suspend the worker
// may believe in its term for too long, and then only the fence stops it. Node offers no CLOCK_BOOTTIME.
const now = () => Number(process.hrtime.bigint() / 1000n) / 1000;

const say = (event) => console.log(`${HOLDER} ${event}`);
const pause = (ms, signal) => sleep(Math.max(ms, 0), undefined, { signal }).catch(() => {});
const oneLine = (error) => String(error?.message || error?.code || error).replace(/\s+/g, " ");

class TermOver extends Error {}

/** One term of leadership. Its signal reaches the work in hand. */
class Term {
  #over = new AbortController();

  constructor(token, deadline) {
    this.token = token;
    this.deadline = deadline;
    this.signal = this.#over.signal;
    this.idle = AbortSignal.any([this.signal, leaving.signal]); // for waits that a polite exit may cut short, too
  }

  left() {
    return this.deadline - now();
  }

  end(why) {
    this.#over.abort(why);
  }

  /** Throws if the term is over. It asks the clock: after SIGCONT, timers fire late and in any order. */
  check() {
    if (this.left() <= 0) this.end(new TermOver("its deadline has passed"));
    this.signal.throwIfAborted();
  }
}

async function connect(limit) {
  const client = new pg.Client({
    connectionTimeoutMillis: Math.max(limit, 1),
    keepAlive: true,
    application_name: HOLDER,
  });
  // The server may end a connection while no query is under way. Without a listener that event would end the process.
  client.on("error", (error) => console.error(`${HOLDER} connection: ${oneLine(error)}`));
  await client.connect();
  return client;
}

/**
 * One statement, with a limit for its answer. A query that has values but no name uses the unnamed statement, which is
 * what a pooler in transaction mode needs. After a timeout the answer may still come: the client is good for nothing
 * then but end().
 */
async function ask(client, limit, text, values = []) {
  const { rows } = await client.query({ text, values, query_timeout: Math.max(Math.ceil(limit), 1) });
  return rows[0];
}

/** Try until the lease is ours; null when leaving. A losing attempt costs the server the reading of a row. */
async function compete(db) {
  while (!leaving.signal.aborted) {
    const asked = now(); // before the request: the server's ttl starts later, so our deadline comes first
    const { token, ttl, retry } = await ask(
      db,
      Math.max(TTL, 2000),
      `SELECT token, EXTRACT(epoch FROM ttl) * 1000 AS ttl, EXTRACT(epoch FROM retry_after) * 1000 AS retry
         FROM lease_attempt($1, $2, make_interval(secs => $3))`,
      [ROLE, HOLDER, TTL / 1000],
    );
    if (token !== null) return new Term(token, asked + Number(ttl));
    await pause(Math.min(Number(retry), 1000, TTL / 2) + Math.random() * 200, leaving.signal);
  }
  return null;
}

/** The heartbeat, on a client of its own, so that no slow query delays it. It also ends the term at its deadline. */
async function keepAlive(term) {
  let client;
  term.signal.addEventListener("abort", () => client?.end()); // also under a query that waits for its answer
  let wait = BEAT;
  while (!term.signal.aborted) {
    await pause(Math.min(wait, term.left()), term.signal);
    try {
      term.check();
      client ??= await connect(Math.min(2000, term.left()));
      term.check();
      const asked = now();
      const { ttl } = await ask(
        client,
        Math.min(BEAT, term.left()),
        "SELECT EXTRACT(epoch FROM lease_renew($1, $2, $3, make_interval(secs => $4))) * 1000 AS ttl",
        [ROLE, HOLDER, term.token, TTL / 1000],
      );
      if (ttl === null) term.end(new TermOver("it was not renewed"));
      else term.deadline = asked + Number(ttl);
      wait = BEAT;
    } catch (error) {
      // An error or no answer changes nothing: the old deadline stands, and until then we try again.
      if (!term.signal.aborted) console.error(`${HOLDER} heartbeat: ${oneLine(error)}`);
      client?.end();
      client = undefined;
      wait = TTL / 20;
    }
  }
}

/** Work until the term is over, the connection is lost, or we leave. */
async function lead(db, term) {
  say(`leads token=${term.token}`);
  const lostConnection = (error) => term.end(error);
  db.once("error", lostConnection);
  const heartbeat = keepAlive(term);
  try {
    while (!leaving.signal.aborted) {
      term.check();
      const job = await ask(db, term.left(), "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1");
      if (!job) {
        await pause(1000, term.idle);
        continue;
      }
      await pause(WORK, term.signal); // the work: whatever it is, hand it the signal
      term.check();
      const done = await ask(
        db,
        term.left(),
        `UPDATE job
            SET worker = $2, completed_at = clock_timestamp(), completed_by_token = lease_require_fence($1, $2, $3)
          WHERE slot = $4 AND completed_at IS NULL
         RETURNING slot`,
        [ROLE, HOLDER, term.token, job.slot],
      );
      if (done) say(`completed slot=${done.slot} token=${term.token}`);
    }
    const { released } = await ask(db, Math.min(BEAT, 2000), "SELECT lease_release($1, $2, $3) AS released", [
      ROLE,
      HOLDER,
      term.token,
    ]);
    say(released ? `released token=${term.token}` : `lost token=${term.token}: it had ended before`);
  } catch (error) {
    say(`lost token=${term.token}: ${oneLine(error)}`);
    if (!(error instanceof TermOver) && error.code !== "LF001") throw error;
  } finally {
    // Whatever happened: no renewal after this, or a worker that does nothing would lead.
    term.end(new TermOver("stepped down"));
    db.off("error", lostConnection);
    await heartbeat;
  }
}

let backoff = 100;
let failed = -Infinity;
while (!leaving.signal.aborted) {
  let db;
  try {
    db = await connect(2000);
    for (let term; (term = await compete(db));) {
      await lead(db, term);
    }
  } catch (error) {
    if (leaving.signal.aborted) break;
    say(`reconnecting: ${oneLine(error)}`);
    // A term is no success: what fails may be the work, such as a table that is missing.
    backoff = now() - failed < 10000 ? Math.min(backoff * 2, 2000) : 100;
    failed = now();
    await pause(backoff * (0.5 + Math.random()), leaving.signal);
  } finally {
    db?.end();
  }
}
say("exits");
process.exit(0); // a connection that does not answer must not keep the process
