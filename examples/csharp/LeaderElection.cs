// Leader election for a .NET service by the PostgreSQL extension leader_lease. This file stands alone: copy it.
//
//     builder.Services.AddSingleton(new LeaderElectionOptions { Role = …, Holder = …, Ttl = …, DataSource = … });
//     builder.Services.AddSingleton<LeaderElection>();
//     builder.Services.AddHostedService(services => services.GetRequiredService<LeaderElection>());
//
//     await election.RunIfLeaderAsync(async (term, cancellationToken) => { … });      // false: does not lead
//
// Two things guard the work. The process's own clock stops it early: past the deadline of the term IsLeader is false,
// and the work's CancellationToken is cancelled. That is polite, but no proof, since a process may be paused between a
// look at the clock and the write after it. The proof is the fence: work that writes shows term.Token to the database,
// and the database refuses (SQLSTATE LF001) once the term is over.

using System.ComponentModel;
using System.Diagnostics;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.InteropServices;
using Microsoft.Extensions.Hosting;
using Microsoft.Extensions.Logging;
using Npgsql;

namespace LeaderWorker;

public sealed class LeaderElectionOptions
{
    /// <summary>The lease's name.</summary>
    public required string Role { get; init; }

    /// <summary>
    /// Who competes: a name that is new for every start of the process. With a fixed one a restarted process would
    /// carry on the term of its predecessor, even while that one is not quite dead.
    /// </summary>
    public required string Holder { get; init; }

    /// <summary>How long a leader that died blocks the others.</summary>
    public required TimeSpan Ttl { get; init; }

    /// <summary>
    /// A pool that serves the election alone: a heartbeat must not queue for a connection behind the application.
    /// </summary>
    public required NpgsqlDataSource DataSource { get; init; }
}

public sealed class LeadershipChangedEventArgs(bool isLeader, long token, string? reason) : EventArgs
{
    public bool IsLeader => isLeader;

    /// <summary>The token of the term that has begun or ended.</summary>
    public long Token => token;

    /// <summary>Why the term has ended; null at its begin.</summary>
    public string? Reason => reason;
}

/// <summary>Competes for the lease, keeps it alive, and runs work only while this process leads.</summary>
public sealed class LeaderElection(
    LeaderElectionOptions options, IHostApplicationLifetime lifetime, ILogger<LeaderElection> logger)
    : BackgroundService
{
    private const string StaleFence = "LF001";

    // So two heartbeats may fail before the term is lost.
    private readonly TimeSpan heartbeat = options.Ttl / 3;

    private volatile LeaderTerm? current;

    // The last attempt got no answer: it may have been granted all the same.
    private bool grantUnknown;

    /// <summary>
    /// Does this process lead, by its own clock? Good for a health check or a metric. To act on it, use
    /// <see cref="RunIfLeaderAsync"/>: an answer like this one is already old when it arrives.
    /// </summary>
    public bool IsLeader => current is { IsLive: true };

    /// <summary>
    /// A term has begun or ended. Raised by the election itself, one change after the other and outside of any lock.
    /// The election waits for the handlers, so they must be quick. When it is raised for an end, the work of the term
    /// has come to its end too, and in an orderly shutdown the lease is not yet released.
    /// </summary>
    public event EventHandler<LeadershipChangedEventArgs>? LeadershipChanged;

    /// <summary>
    /// Runs <paramref name="work"/> if this process leads. Its token is cancelled when the term is over: lost, given
    /// up, or past the deadline by the process's own clock. It is not cancelled when the host stops: then the term is
    /// not prolonged any more, and work in hand has what is left of it to come to its end. Pass a token of your own for
    /// work that should stop at once.
    /// </summary>
    /// <returns>
    /// True: the work ran to its end. False: this process does not lead, or the term was over before the work had come
    /// to its end (the work was cancelled, or the database refused its fence; then this process has stepped down).
    /// Other exceptions of the work come through.
    /// </returns>
    public async Task<bool> RunIfLeaderAsync(
        Func<LeaderTerm, CancellationToken, Task> work, CancellationToken cancellationToken = default)
    {
        ArgumentNullException.ThrowIfNull(work);
        if (current is not { } term || !term.TryEnter())
        {
            return false;
        }

        try
        {
            using var either = CancellationTokenSource.CreateLinkedTokenSource(term.Over, cancellationToken);
            await work(term, either.Token);
            return true;
        }
        catch (OperationCanceledException) when (!term.IsLive && !cancellationToken.IsCancellationRequested)
        {
            return false;
        }
        catch (Exception e) when (IsStaleFence(e))
        {
            await term.EndAsync(Describe(e), stale: true);
            return false;
        }
        finally
        {
            term.Leave();
        }
    }

    /// <summary>
    /// Gives the lease up, for a leader that cannot do its work: another one may. This process competes again after a
    /// pause. Does nothing where it does not lead.
    /// </summary>
    public Task StepDownAsync(string reason) => current?.EndAsync(reason, stale: false) ?? Task.CompletedTask;

    protected override async Task ExecuteAsync(CancellationToken stoppingToken)
    {
        // The host calls StopAsync of one service after the other, but tells its intention to all of them at once. To
        // wait for one's turn would mean to compete, or to prolong the term, while another service finishes its work.
        using var stop = CancellationTokenSource.CreateLinkedTokenSource(stoppingToken, lifetime.ApplicationStopping);
        var backoff = new Backoff();
        while (!stop.IsCancellationRequested)
        {
            TimeSpan pause;
            try
            {
                var (term, retryAfter) = await AttemptAsync(stop.Token);
                backoff.Reset();
                if (term is null)
                {
                    // Look again when the present term would run out, but also before: it may be released.
                    var longest = TimeSpan.FromSeconds(Math.Min(1, options.Ttl.TotalSeconds / 2));
                    pause = retryAfter < longest ? retryAfter : longest;
                    pause += TimeSpan.FromMilliseconds(20 + (Random.Shared.NextDouble() * 100));
                }
                else
                {
                    await LeadAsync(term, stop.Token);
                    pause = backoff.Next();
                }
            }
            catch (OperationCanceledException) when (stop.IsCancellationRequested)
            {
                break;
            }
            catch (Exception e)
            {
                // The server is down, starting, failing over, or something unforeseen: none of it is a reason to end.
                logger.LogInformation("reconnecting: {Reason}", Describe(e));
                if (e is not (NpgsqlException or OperationCanceledException or TimeoutException))
                {
                    logger.LogError(e, "unexpected error in the election");
                }

                pause = backoff.Next();
            }

            await Task.Delay(pause, stop.Token).ConfigureAwait(ConfigureAwaitOptions.SuppressThrowing);
        }

        if (grantUnknown)
        {
            await ReleaseUnknownGrantAsync();
        }
    }

    /// <summary>Asks for the lease once: a term, or when to ask again.</summary>
    private async Task<(LeaderTerm? Term, TimeSpan RetryAfter)> AttemptAsync(CancellationToken stop)
    {
        // The attempt may wait a moment on the server for transactions of the term before.
        var limit = options.Ttl + TimeSpan.FromSeconds(1);
        using var timeout = new CancellationTokenSource(limit);
        using var either = CancellationTokenSource.CreateLinkedTokenSource(timeout.Token, stop);
        await using var connection = await options.DataSource.OpenConnectionAsync(either.Token);
        await using var command = Command(
            connection, "SELECT token, ttl, retry_after FROM lease_attempt($1, $2, $3)", limit,
            options.Role, options.Holder, options.Ttl);

        // Once it is sent, a host that stops does not cancel it: it would not know whether it has got the lease. It
        // only waits less patiently.
        await using var hurry = stop.Register(() => timeout.CancelAfter(heartbeat));
        var asked = BootClock.Now;
        grantUnknown = true;
        await using var row = await command.ExecuteReaderAsync(timeout.Token);
        await row.ReadAsync(timeout.Token);
        var answer = row.IsDBNull(0)
            ? ((LeaderTerm?)null, row.GetFieldValue<TimeSpan>(2))
            : (new LeaderTerm(options.Role, options.Holder, row.GetInt64(0), asked + row.GetFieldValue<TimeSpan>(1)),
                TimeSpan.Zero);
        grantUnknown = false;
        return answer;
    }

    /// <summary>
    /// Leads until the term is over or the host stops. In the end the work is done and the lease given back.
    /// </summary>
    private async Task LeadAsync(LeaderTerm term, CancellationToken stop)
    {
        using var beating = CancellationTokenSource.CreateLinkedTokenSource(term.Over);
        var beats = BeatAsync(term, beating.Token);
        logger.LogInformation("leads token={Token}", term.Token);
        current = term;
        Raise(new LeadershipChangedEventArgs(true, term.Token, null));
        try
        {
            using (var end = CancellationTokenSource.CreateLinkedTokenSource(term.Over, stop))
            {
                await Task.Delay(Timeout.InfiniteTimeSpan, end.Token)
                    .ConfigureAwait(ConfigureAwaitOptions.SuppressThrowing);
            }

            // Nothing new begins, and the term is not prolonged. Work in hand goes on until it is done or the term is
            // over. This process does not compete before that: what is left of an old term's work must not run beside
            // a new one's.
            var drained = term.DrainAsync();
            await beating.CancelAsync();
            await beats;
            await drained;
        }
        finally
        {
            current = null;
            await term.EndAsync("the host stops", stale: false);
            Raise(new LeadershipChangedEventArgs(false, term.Token, term.Reason));
        }

        var released = term.Remaining > TimeSpan.Zero && await ReleaseAsync(term);
        if (released && stop.IsCancellationRequested)
        {
            logger.LogInformation("released token={Token}", term.Token);
        }
        else
        {
            logger.LogInformation("lost token={Token}: {Reason}", term.Token, term.Reason);
        }
    }

    /// <summary>
    /// Renews the term until it is over. A failed renewal leaves the deadline where it is and is tried again soon.
    /// </summary>
    /// <remarks>
    /// It runs on the thread pool. An application that blocks the pool's threads delays it; if that lasts until the
    /// deadline, the term is lost.
    /// </remarks>
    private async Task BeatAsync(LeaderTerm term, CancellationToken cancellationToken)
    {
        using var timer = new PeriodicTimer(heartbeat);
        try
        {
            while (await timer.WaitForNextTickAsync(cancellationToken))
            {
                try
                {
                    if (!term.IsLive || !await RenewAsync(term))
                    {
                        if (term.Reason is null)        // else this process has ended it, and may have to release it
                        {
                            await term.EndAsync("the database says that the term is over", stale: true);
                        }

                        return;
                    }

                    timer.Period = heartbeat;
                }
                catch (Exception e) when (!cancellationToken.IsCancellationRequested)
                {
                    logger.LogWarning("heartbeat failed: {Reason}", Describe(e));
                    timer.Period = heartbeat / 4;
                }
            }
        }
        catch (Exception) when (cancellationToken.IsCancellationRequested)
        {
            // Whatever became of a renewal that was under way, the caller still has to wait for the work.
        }
    }

    private async Task<bool> RenewAsync(LeaderTerm term)
    {
        // Count from before the request is sent: the server's ttl begins after that, so the own deadline comes first.
        var asked = BootClock.Now;
        var granted = await ScalarAsync(
            "SELECT lease_renew($1, $2, $3, $4)", Shorter(heartbeat, term.Remaining),
            term.Role, term.Holder, term.Token, options.Ttl);
        return granted is TimeSpan ttl && term.Extend(asked + ttl);     // DBNull: the term is over
    }

    private async Task<bool> ReleaseAsync(LeaderTerm term)
    {
        try
        {
            return await ScalarAsync(
                "SELECT lease_release($1, $2, $3)", Shorter(heartbeat, term.Remaining),
                term.Role, term.Holder, term.Token) is true;
        }
        catch (Exception e)
        {
            // It is not needed for safety: the others wait for the ttl instead.
            logger.LogWarning("release failed: {Reason}", Describe(e));
            return false;
        }
    }

    private async Task ReleaseUnknownGrantAsync()
    {
        try
        {
            var token = await ScalarAsync(
                """
                SELECT fencing_token FROM lease_status
                 WHERE role = $1 AND holder_id = $2 AND live AND lease_release(role, holder_id, fencing_token)
                """,
                heartbeat, options.Role, options.Holder);
            if (token is long)
            {
                logger.LogInformation("released token={Token}", token);
            }
        }
        catch (Exception e)
        {
            logger.LogWarning("release failed: {Reason}", Describe(e));
        }
    }

    /// <summary>One statement with its own time limit, on a connection of the election's pool.</summary>
    private async Task<object?> ScalarAsync(string sql, TimeSpan limit, params object[] arguments)
    {
        // Cancellation reaches the statement in flight: Npgsql sends a cancel request, and if that does not help either
        // (Cancellation Timeout), it breaks the connection.
        using var timeout = new CancellationTokenSource(limit);
        await using var connection = await options.DataSource.OpenConnectionAsync(timeout.Token);
        await using var command = Command(connection, sql, limit, arguments);
        return await command.ExecuteScalarAsync(timeout.Token);
    }

    private static NpgsqlCommand Command(
        NpgsqlConnection connection, string sql, TimeSpan limit, params object[] arguments)
    {
        // The callers' tokens are the limits. The command's own, in whole seconds, must only be longer.
        var command = new NpgsqlCommand(sql, connection) { CommandTimeout = 1 + (int)Math.Ceiling(limit.TotalSeconds) };
        foreach (var argument in arguments)
        {
            command.Parameters.Add(new NpgsqlParameter { Value = argument });   // TimeSpan: interval, long: bigint
        }

        return command;
    }

    private void Raise(LeadershipChangedEventArgs change)
    {
        foreach (var handler in Delegate.EnumerateInvocationList(LeadershipChanged))
        {
            try
            {
                handler(this, change);
            }
            catch (Exception e)
            {
                logger.LogError(e, "a handler of LeadershipChanged failed");
            }
        }
    }

    private static TimeSpan Shorter(TimeSpan a, TimeSpan b) => a < b ? (a > TimeSpan.Zero ? a : TimeSpan.Zero) : b;

    /// <summary>Also where an ORM has wrapped the refusal.</summary>
    private static bool IsStaleFence(Exception? e) =>
        e is not null && (e is PostgresException { SqlState: StaleFence } || IsStaleFence(e.InnerException));

    /// <summary>An exception in one line.</summary>
    internal static string Describe(Exception e) => e switch
    {
        PostgresException p => $"{p.SqlState} {p.MessageText}",
        OperationCanceledException => "no answer in time",
        { InnerException: PostgresException p } => Describe(p),
        NpgsqlException { InnerException: { } inner } => $"{e.Message} ({inner.Message})".ReplaceLineEndings(" "),
        _ => e.Message.ReplaceLineEndings(" "),
    };
}

/// <summary>
/// One term of leadership. It is over when its deadline has passed or it was ended, and never comes back.
/// </summary>
[SuppressMessage("Design", "CA1001", Justification =
    "Work may still hold the token, so it is not disposed. Every term ends cancelled, which frees the timer.")]
public sealed class LeaderTerm
{
    private readonly Lock gate = new();
    private readonly CancellationTokenSource over = new();
    private readonly TaskCompletionSource drained = new(TaskCreationOptions.RunContinuationsAsynchronously);
    private TimeSpan deadline;
    private string? reason;
    private bool stale;
    private bool closed;
    private int running;

    internal LeaderTerm(string role, string holder, long token, TimeSpan deadline)
    {
        Role = role;
        Holder = holder;
        Token = token;
        this.deadline = deadline;
        over.CancelAfter(Remaining);
    }

    public string Role { get; }

    public string Holder { get; }

    /// <summary>The fencing token, for lease_require_fence.</summary>
    public long Token { get; }

    /// <summary>Cancelled when the term is over.</summary>
    public CancellationToken Over => over.Token;

    /// <summary>
    /// Asks the clock, and not only <see cref="Over"/>: in a process that has just been woken from a pause, timers fire
    /// late. And .NET's timers stand still while the machine is suspended.
    /// </summary>
    public bool IsLive
    {
        get
        {
            lock (gate)
            {
                return reason is null && !over.IsCancellationRequested && BootClock.Now < deadline;
            }
        }
    }

    /// <summary>Why the term is over; null while it is live.</summary>
    internal string? Reason
    {
        get
        {
            lock (gate)
            {
                return reason;
            }
        }
    }

    /// <summary>
    /// For how long the lease is still this process's, as far as it knows: what a release can save the others.
    /// </summary>
    internal TimeSpan Remaining
    {
        get
        {
            lock (gate)
            {
                var left = deadline - BootClock.Now;
                return stale || left < TimeSpan.Zero ? TimeSpan.Zero : left;
            }
        }
    }

    /// <summary>
    /// To be called between two steps of the work, above all right before an effect outside of the database.
    /// </summary>
    public void ThrowIfOver()
    {
        if (!IsLive)
        {
            throw new OperationCanceledException("The term is over.", Over);
        }
    }

    /// <summary>
    /// Ends the term for this process and cancels its work. Returns when the cancellation has been delivered.
    /// </summary>
    /// <param name="why">For the log.</param>
    /// <param name="stale">The database has said that it is over: there is nothing left to release.</param>
    internal Task EndAsync(string why, bool stale)
    {
        lock (gate)
        {
            reason ??= over.IsCancellationRequested || BootClock.Now >= deadline ? "its own deadline has passed" : why;
            this.stale |= stale;
        }

        // Not under the lock, and not Cancel(): whoever has registered with the token would run right here.
        return over.CancelAsync();
    }

    /// <summary>A renewal was granted. False: too late, this process has already taken the term for over.</summary>
    internal bool Extend(TimeSpan newDeadline)
    {
        lock (gate)
        {
            var now = BootClock.Now;
            if (reason is not null || over.IsCancellationRequested || now >= deadline || now >= newDeadline)
            {
                return false;
            }

            deadline = newDeadline;
            over.CancelAfter(newDeadline - now);
            return true;
        }
    }

    internal bool TryEnter()
    {
        lock (gate)
        {
            if (closed || !IsLive)
            {
                return false;
            }

            running++;
            return true;
        }
    }

    internal void Leave()
    {
        lock (gate)
        {
            if (--running == 0 && closed)
            {
                drained.SetResult();
            }
        }
    }

    /// <summary>Lets no more work in, and waits for what is running.</summary>
    internal Task DrainAsync()
    {
        lock (gate)
        {
            closed = true;
            if (running == 0)
            {
                drained.TrySetResult();
            }
        }

        return drained.Task;
    }
}

/// <summary>
/// Time since boot on a clock that nobody can set and that goes on while the machine is suspended. On Linux neither
/// Stopwatch nor Environment.TickCount64 does: both are CLOCK_MONOTONIC, and a laptop or virtual machine that slept
/// through its ttl would believe that it still leads. On Windows Stopwatch does go on.
/// </summary>
internal static class BootClock
{
    private const int ClockBoottime = 7;

    public static TimeSpan Now
    {
        get
        {
            if (!OperatingSystem.IsLinux())
            {
                return Stopwatch.GetElapsedTime(0);
            }

            if (ClockGetTime(ClockBoottime, out var time) != 0)
            {
                throw new Win32Exception(Marshal.GetLastPInvokeError());
            }

            return new TimeSpan((time.Seconds * TimeSpan.TicksPerSecond) + (time.Nanoseconds / 100));
        }
    }

    [DllImport("libc", EntryPoint = "clock_gettime", SetLastError = true)]
    private static extern int ClockGetTime(int clock, out Timespec time);

    [StructLayout(LayoutKind.Sequential)]
    private readonly struct Timespec
    {
        // of the width of a C long
        private readonly nint seconds;
        private readonly nint nanoseconds;

        public long Seconds => seconds;

        public long Nanoseconds => nanoseconds;
    }
}

/// <summary>Pauses between attempts after an error: from 0.1 s to 2 s, with jitter, to spread a crowd out.</summary>
internal sealed class Backoff
{
    private static readonly TimeSpan First = TimeSpan.FromSeconds(0.1);
    private static readonly TimeSpan Last = TimeSpan.FromSeconds(2);
    private TimeSpan next = First;

    public void Reset() => next = First;

    public TimeSpan Next()
    {
        var pause = next * (0.75 + (Random.Shared.NextDouble() / 2));
        next = next * 2 < Last ? next * 2 : Last;
        return pause;
    }
}
