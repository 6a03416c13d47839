using Microsoft.Extensions.Hosting;
using Microsoft.Extensions.Logging;
using Npgsql;

namespace LeaderWorker;

public sealed class JobWorkerOptions
{
    /// <summary>How long one job takes.</summary>
    public required TimeSpan WorkTime { get; init; }
}

/// <summary>Does the lowest open job, again and again, while this process leads.</summary>
public sealed class JobWorker(
    LeaderElection election, NpgsqlDataSource database, JobWorkerOptions options, ILogger<JobWorker> logger)
    : BackgroundService
{
    private static readonly TimeSpan WhileNotLeading = TimeSpan.FromMilliseconds(50);
    private static readonly TimeSpan WithoutJobs = TimeSpan.FromMilliseconds(200);

    protected override async Task ExecuteAsync(CancellationToken stoppingToken)
    {
        var backoff = new Backoff();
        while (!stoppingToken.IsCancellationRequested)
        {
            var pause = TimeSpan.Zero;
            try
            {
                // Not stoppingToken: a host that stops waits for the job in hand.
                var found = false;
                var ran = await election.RunIfLeaderAsync(
                    async (term, cancellationToken) => found = await DoNextJobAsync(term, cancellationToken),
                    CancellationToken.None);
                pause = ran ? (found ? TimeSpan.Zero : WithoutJobs) : WhileNotLeading;
                if (ran)
                {
                    backoff.Reset();
                }
            }
            catch (Exception e)
            {
                // Most likely the connection is lost. Heartbeats may still arrive, but a leader that cannot do its work
                // had better let another try.
                var reason = LeaderElection.Describe(e);
                logger.LogInformation("reconnecting: {Reason}", reason);
                if (e is not (NpgsqlException or OperationCanceledException or TimeoutException))
                {
                    logger.LogError(e, "unexpected error in a job");
                }

                await election.StepDownAsync(reason);
                pause = backoff.Next();
            }

            await Task.Delay(pause, stoppingToken).ConfigureAwait(ConfigureAwaitOptions.SuppressThrowing);
        }
    }

    /// <summary>Returns whether there was one.</summary>
    private async Task<bool> DoNextJobAsync(LeaderTerm term, CancellationToken cancellationToken)
    {
        await using var next = database.CreateCommand(
            "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1");
        if (await next.ExecuteScalarAsync(cancellationToken) is not long slot)
        {
            return false;
        }

        // The work itself, which listens to cancellation. A pause of the whole process in here goes unnoticed.
        await Task.Delay(options.WorkTime, cancellationToken);
        term.ThrowIfOver();

        // One statement, in autocommit, takes the fence, writes and stamps the row with the token, or fails with LF001.
        // Between the look at the clock above and here the term may have ended: that is what the fence is for.
        await using var complete = database.CreateCommand(
            """
            UPDATE job
               SET worker = $1, completed_at = clock_timestamp(), completed_by_token = lease_require_fence($2, $1, $3)
             WHERE slot = $4 AND completed_at IS NULL
            """);
        complete.Parameters.Add(new NpgsqlParameter<string> { TypedValue = term.Holder });
        complete.Parameters.Add(new NpgsqlParameter<string> { TypedValue = term.Role });
        complete.Parameters.Add(new NpgsqlParameter<long> { TypedValue = term.Token });
        complete.Parameters.Add(new NpgsqlParameter<long> { TypedValue = slot });
        if (await complete.ExecuteNonQueryAsync(cancellationToken) == 1)
        {
            logger.LogInformation("completed slot={Slot} token={Token}", slot, term.Token);
        }

        return true;
    }
}
