// A worker that works only while it leads, as a .NET service: Generic Host and Npgsql.
//
//     PGHOST=… PGDATABASE=… ./run
//
// LeaderElection.cs is the part to copy: a BackgroundService that competes for the lease, keeps it alive, and runs work
// only while this process leads. JobWorker.cs uses it. Any number of them may run; one works, the others wait. SIGTERM
// or SIGINT: the job in hand is finished, the lease released, exit 0.
//
// Environment: the PG* variables, LEASE_ROLE (mail), LEASE_TTL in seconds (10), WORK_MS (200), WORKER_NAME (csharp).
// Logging__LogLevel__Default=Debug shows more.

using System.Globalization;
using System.Security.Cryptography;
using LeaderWorker;
using Microsoft.Extensions.Configuration;
using Microsoft.Extensions.DependencyInjection;
using Microsoft.Extensions.Hosting;
using Microsoft.Extensions.Logging;
using Microsoft.Extensions.Logging.Abstractions;
using Microsoft.Extensions.Logging.Console;
using Npgsql;

var builder = Host.CreateApplicationBuilder(
    new HostApplicationBuilderSettings { Args = args, ContentRootPath = AppContext.BaseDirectory });
var configuration = builder.Configuration;      // the environment's variables are part of it

var ttl = TimeSpan.FromSeconds(double.Parse(configuration["LEASE_TTL"] ?? "10", CultureInfo.InvariantCulture));
var name = configuration["WORKER_NAME"] ?? "csharp";
await using var electionDatabase = CreateDataSource(configuration, name, ttl, maxPoolSize: 2);      // one to spare
await using var database = CreateDataSource(configuration, name, ttl, maxPoolSize: 10);
var options = new LeaderElectionOptions
{
    Role = configuration["LEASE_ROLE"] ?? "mail",
    Holder = $"{name}-{RandomNumberGenerator.GetHexString(8, lowercase: true)}",
    Ttl = ttl,
    DataSource = electionDatabase,
};

builder.Logging.ClearProviders();
builder.Logging.AddFilter("Microsoft", LogLevel.Warning);
builder.Logging.AddConsoleFormatter<LineFormatter, ConsoleFormatterOptions>();
builder.Logging.AddConsole(console =>
{
    console.FormatterName = nameof(LineFormatter);
    console.LogToStandardErrorThreshold = LogLevel.Warning;
});

builder.Services.AddSingleton(options);
builder.Services.AddSingleton(database);
builder.Services.AddSingleton(new JobWorkerOptions
{
    WorkTime = TimeSpan.FromMilliseconds(int.Parse(configuration["WORK_MS"] ?? "200", CultureInfo.InvariantCulture)),
});

// A host that stops: the worker finishes the job in hand, the election waits for that and releases the lease. The order
// in which the two are registered does not matter.
builder.Services.AddSingleton<LeaderElection>();
builder.Services.AddHostedService(services => services.GetRequiredService<LeaderElection>());
builder.Services.AddHostedService<JobWorker>();

// No work outlives its term, so a ttl is enough for it, and some more to tell the server.
builder.Services.Configure<HostOptions>(host => host.ShutdownTimeout = ttl + TimeSpan.FromSeconds(5));

using var host = builder.Build();
var logger = host.Services.GetRequiredService<ILogger<Program>>();
host.Services.GetRequiredService<LeaderElection>().LeadershipChanged += (_, change) =>
    logger.LogDebug("leader: {IsLeader}, token {Token}, {Reason}", change.IsLeader, change.Token, change.Reason);
host.Services.GetRequiredService<IHostApplicationLifetime>()
    .ApplicationStopped.Register(() => logger.LogInformation("exits"));

await host.RunAsync();

static NpgsqlDataSource CreateDataSource(IConfiguration environment, string name, TimeSpan ttl, int maxPoolSize)
{
    // At most a third of the ttl for what may hang; Npgsql counts in whole seconds.
    var seconds = Math.Max(1, (int)Math.Ceiling(ttl.TotalSeconds / 3));
    var settings = new NpgsqlConnectionStringBuilder
    {
        // Npgsql itself reads PGUSER, PGPASSWORD, PGPASSFILE, PGSSLCERT, PGSSLKEY and PGSSLROOTCERT, but not these:
        Host = environment["PGHOST"] ?? "localhost",
        Port = int.Parse(environment["PGPORT"] ?? "5432", CultureInfo.InvariantCulture),
        Database = environment["PGDATABASE"],
        ApplicationName = environment["PGAPPNAME"] ?? name,
        SslMode = Enum.Parse<SslMode>((environment["PGSSLMODE"] ?? "prefer").Replace("-", ""), ignoreCase: true),

        // For pgbouncer with pool_mode = transaction. No DISCARD ALL when a connection goes back to Npgsql's pool: it
        // would hit whatever server connection comes next. No prepared statements, which stay behind on one server
        // connection (0 is the default; and never Prepare()). One command at a time on a connection (the default).
        NoResetOnClose = true,
        MaxAutoPrepare = 0,
        Multiplexing = false,

        // A heartbeat that enlists in somebody's TransactionScope would count only if and when that one commits.
        Enlist = false,

        // To connect, to run a statement, and (in ms) to wait for the effect of a cancel request.
        Timeout = seconds,
        CommandTimeout = seconds,
        CancellationTimeout = 500,
        MaxPoolSize = maxPoolSize,
    };
    return NpgsqlDataSource.Create(settings);
}

/// <summary>One event a line, the holder first.</summary>
internal sealed class LineFormatter(LeaderElectionOptions options) : ConsoleFormatter(nameof(LineFormatter))
{
    public override void Write<TState>(
        in LogEntry<TState> logEntry, IExternalScopeProvider? scopeProvider, TextWriter textWriter)
    {
        textWriter.WriteLine($"{options.Holder} {logEntry.Formatter(logEntry.State, logEntry.Exception)}");
        if (logEntry.Exception is { } exception)
        {
            textWriter.WriteLine(exception);
        }
    }
}
