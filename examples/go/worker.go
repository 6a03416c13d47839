// A worker in Go with pgx that works only while it leads. Copy it.
//
//	examples/go/run
//
// It competes for the lease LEASE_ROLE. While it leads, it completes one row of the table job after another (see
// ../schema.sql), each with the fencing token of its term. The PG* variables say where the database is. SIGTERM or
// SIGINT: it finishes the job in hand, or stops waiting, gives the lease back and exits 0.
//
// Two clocks guard the work. The worker's own stops it early: the context of a term is cancelled at its deadline. That
// is no proof, since a pause can come right after the look at the clock. The proof is the fence: the database refuses a
// write that shows the token of a term that is over (SQLSTATE LF001).
//
// Nothing here depends on a session, so transaction pooling works (pgbouncer). Mind that there each waiting
// lease_campaign holds a server connection: the pool has to be larger than the number of workers.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	mathrand "math/rand"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

const (
	staleFence = "LF001"
	// maxWait bounds a stay in the queue. After it we ask again, so that a connection that is dead shows.
	maxWait = 30 * time.Second
)

var (
	errTermOver = errors.New("the database says that the term is over")
	errDeadline = errors.New("the deadline has passed")
)

type worker struct {
	config       *pgx.ConnConfig
	role, holder string
	ttl, jobTime time.Duration
	failures     int // in close succession
	failed       time.Time
}

// A term is one term of leadership. Its context is done when it is over.
type term struct {
	token  int64
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.Once
	why    error // it ended; nil if we wanted it to

	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer // ends the term at the deadline
}

func newTerm(token int64) *term {
	t := &term{token: token}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// end ends the term. The first reason counts, as in context.WithCancelCause, which came with Go 1.20.
func (t *term) end(why error) {
	t.ended.Do(func() {
		t.why = why
		t.cancel()
	})
}

// prolong counts from before the request: the server's ttl began later than that.
func (t *term) prolong(asked time.Time, granted time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.deadline = asked.Add(granted)
	t.timer = time.AfterFunc(time.Until(t.deadline), func() { t.end(errDeadline) })
}

// live is asked before each step. The timer alone would not do: Go's monotonic clock, and with it all its timers, stand
// still while the machine is suspended. The wall clock (Round drops the monotonic reading) does not, but can be set. So
// the term is over as soon as either says so; a wall clock that is set forward costs a term and does no harm.
func (t *term) live() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if !now.Before(t.deadline) || !now.Round(0).Before(t.deadline.Round(0)) {
		t.end(errDeadline)
	}
	return t.ctx.Err() == nil
}

func (w *worker) say(format string, args ...any) {
	fmt.Printf(w.holder+" "+format+"\n", args...)
}

func (w *worker) connect(ctx context.Context, limit time.Duration) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return pgx.ConnectConfig(ctx, w.config)
}

// disconnect closes the connection, which may be nil or broken. When a context has cut off a statement, pgx sends a
// cancel request and closes the connection in the background; that is waited for, see campaign.
func disconnect(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// campaign waits in turn for the lease. The token is nil after maxWait.
func (w *worker) campaign(leave context.Context, conn *pgx.Conn) (token *int64, err error) {
	// Not derived from leave: when its context is cancelled, pgx closes the connection, and an answer that is on its
	// way, perhaps a token, is lost. So leave sends a cancel request, and the call still gets its answer.
	ctx, giveUp := context.WithTimeout(context.Background(), maxWait+10*time.Second)
	defer giveUp()
	answered, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-answered:
		case <-leave.Done():
			limit, done := context.WithTimeout(context.Background(), w.ttl/3)
			defer done()
			if err := conn.PgConn().CancelRequest(limit); err != nil {
				log.Print("cancel: ", err)
			}
			select {
			case <-answered:
			case <-limit.Done():
				giveUp()
			}
		}
	}()
	// By itself, since it must not be in a transaction. Its INOUT parameter comes back as a row.
	err = conn.QueryRow(ctx, "CALL lease_campaign($1, $2, $3, $4)", w.role, w.holder, w.ttl, maxWait).Scan(&token)
	close(answered)
	<-finished // A cancel request that is cut off crashes pgbouncer 1.18.
	return token, err
}

// renew prolongs the term, or fails with errTermOver.
func (w *worker) renew(conn *pgx.Conn, t *term) error {
	ctx, cancel := context.WithTimeout(t.ctx, w.ttl/3)
	defer cancel()
	asked := time.Now()
	var granted *time.Duration
	err := conn.QueryRow(ctx, "SELECT lease_renew($1, $2, $3, $4)", w.role, w.holder, t.token, w.ttl).Scan(&granted)
	if err != nil {
		return err
	}
	if granted == nil {
		return errTermOver
	}
	t.prolong(asked, *granted)
	return nil
}

// heartbeat renews the term every third of the ttl, until it is over. It runs beside the work and on a connection of
// its own, so that no job and no long statement delays it.
func (w *worker) heartbeat(t *term) {
	var conn *pgx.Conn
	defer func() { disconnect(conn) }()
	beat := time.NewTicker(w.ttl / 3)
	defer beat.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-beat.C:
		}
		if !t.live() {
			return
		}
		var err error
		if conn == nil {
			conn, err = w.connect(t.ctx, w.ttl/3)
		}
		if err == nil {
			err = w.renew(conn, t)
		}
		switch {
		case err == nil:
			beat.Reset(w.ttl / 3)
		case errors.Is(err, errTermOver):
			t.end(err)
		case t.ctx.Err() != nil: // that is why
		default:
			// An error changes nothing: the old deadline stands, and there is time for another try before it.
			log.Print("renewal: ", err)
			disconnect(conn)
			conn = nil
			beat.Reset(w.ttl / 10)
		}
	}
}

// complete does the next job, in the context of the term: at the deadline the work and its statements are cancelled.
func (w *worker) complete(leave context.Context, conn *pgx.Conn, t *term) error {
	var slot int64
	err := conn.QueryRow(t.ctx, "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1").Scan(&slot)
	if errors.Is(err, pgx.ErrNoRows) {
		sleep(leave, time.Second)
		return nil
	}
	if err != nil {
		return err
	}
	sleep(t.ctx, w.jobTime) // the work itself; leave does not end it
	if !t.live() {
		return t.ctx.Err()
	}
	// The same statement takes the fence and stamps the row with the token, or fails with LF001.
	tag, err := conn.Exec(t.ctx, `
		UPDATE job
		   SET worker = $2, completed_at = clock_timestamp(), completed_by_token = lease_require_fence($1, $2, $3)
		 WHERE slot = $4 AND completed_at IS NULL`, w.role, w.holder, t.token, slot)
	if err == nil && tag.RowsAffected() == 1 {
		w.say("completed slot=%d token=%d", slot, t.token)
	}
	return err
}

// lead works until asked to leave (nil), or the term is over or the connection fails.
func (w *worker) lead(leave context.Context, conn *pgx.Conn, token int64) error {
	t := newTerm(token)
	var beats sync.WaitGroup
	// How long ago the lease was granted is not known, since the call waited: the deadline begins with a renewal.
	if err := w.renew(conn, t); err != nil {
		t.end(err)
	} else {
		w.say("leads token=%d", token)
		beats.Add(1)
		go func() {
			defer beats.Done()
			w.heartbeat(t)
		}()
	}
	for leave.Err() == nil && t.live() {
		if err := w.complete(leave, conn, t); err != nil {
			t.end(err)
		}
	}
	// Whatever happened: no renewal after this, or a worker that does nothing would lead.
	t.end(nil)
	beats.Wait()
	if t.why != nil {
		w.say("lost token=%d: %v", token, t.why)
	}
	return t.why
}

// termOver tells the end of a term, after which the connection is still good, from other errors.
func termOver(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code == staleFence
	}
	return errors.Is(err, errTermOver) || errors.Is(err, errDeadline)
}

// session competes and leads on one connection, until asked to leave or the connection is lost. (A statement that the
// end of a term cuts off closes it, too.)
func (w *worker) session(leave context.Context) error {
	conn, err := w.connect(leave, w.ttl)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	for leave.Err() == nil && !conn.IsClosed() {
		token, err := w.campaign(leave, conn)
		if err != nil {
			return err
		}
		if token != nil && leave.Err() == nil {
			if err := w.lead(leave, conn, *token); err != nil && !termOver(err) {
				return err
			}
		}
	}
	return nil
}

// giveBack ends whatever term is ours. It asks the database, because after a cancelled campaign that alone knows; on a
// new connection, because the old one may be closed, and because a late cancel request may hit what is sent on it.
func (w *worker) giveBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl*2/3)
	defer cancel()
	conn, err := w.connect(ctx, w.ttl/3)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	var token int64
	var released bool
	err = conn.QueryRow(ctx, `
		SELECT fencing_token, lease_release(role, holder_id, fencing_token)
		  FROM lease_status WHERE role = $1 AND holder_id = $2 AND live`, w.role, w.holder).Scan(&token, &released)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if released {
		w.say("released token=%d", token)
	}
	return err
}

// backOff waits a little longer after each failure. Half of it is random, so that workers that lost the same server do
// not come back as one.
func (w *worker) backOff(leave context.Context) {
	if time.Since(w.failed) > 10*time.Second { // a term is no success: what fails may be the work
		w.failures = 0
	}
	w.failed = time.Now()
	pause := 2 * time.Second
	if w.failures < 5 {
		pause = 100 * time.Millisecond << w.failures
	}
	w.failures++
	sleep(leave, pause/2+time.Duration(mathrand.Int63n(int64(pause/2))))
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func getenv(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func newWorker() (*worker, error) {
	ttl, err := strconv.ParseFloat(getenv("LEASE_TTL", "10"), 64)
	if err != nil {
		return nil, err
	}
	jobTime, err := strconv.Atoi(getenv("WORK_MS", "200"))
	if err != nil {
		return nil, err
	}
	// A new holder id for every start. With a fixed one, a restarted process would carry on its predecessor's term.
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	// "describe" is what makes pgx fit for transaction pooling: it prepares no named statements, and sends Parse, Bind
	// and Execute together. In pgx v5 it is default_query_exec_mode=cache_describe.
	config, err := pgx.ParseConfig("statement_cache_mode=describe")
	if err != nil {
		return nil, err
	}
	return &worker{
		config:  config,
		role:    getenv("LEASE_ROLE", "mail"),
		holder:  fmt.Sprintf("%s-%x", getenv("WORKER_NAME", "go"), id),
		ttl:     time.Duration(ttl * float64(time.Second)),
		jobTime: time.Duration(jobTime) * time.Millisecond,
	}, nil
}

func main() {
	w, err := newWorker()
	if err != nil {
		log.Fatal(err)
	}
	log.SetFlags(0)
	log.SetPrefix(w.holder + " ")
	mathrand.Seed(time.Now().UnixNano()) // for the back-off; not needed since Go 1.20

	leave, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	for leave.Err() == nil {
		if err := w.session(leave); err != nil && leave.Err() == nil {
			w.say("reconnecting: %v", err)
			w.backOff(leave)
		}
	}
	if err := w.giveBack(); err != nil {
		log.Print("release: ", err) // the ttl ends what we cannot give back
	}
	w.say("exits")
}
