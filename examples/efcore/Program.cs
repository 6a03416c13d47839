// An EF Core application whose table is protected by leader_lease, without a change to its statements.
//
//     PGHOST=… PGDATABASE=… ./run
//
// FenceInterceptor.cs is the part to copy: it shows the fence by the setting leader_lease.fence. Accounts.cs is the
// application's model. This file lets two holders of one lease save with it: A leads, pauses past its ttl with a change
// in hand, B takes over, A saves. What happens is printed one line at a time; the exit code is 0 only if all of it was
// as it must be. It runs through pgbouncer in transaction mode too.
//
// It makes the lease `efcore`, and the table `efcore_account` anew at every start. The role of the PG* variables must
// be allowed to create a table, and the extension must be there.

using System.Data.Common;
using System.Diagnostics;
using System.Globalization;
using System.Security.Cryptography;
using EfCoreAdoption;
using Microsoft.EntityFrameworkCore;
using Microsoft.EntityFrameworkCore.Diagnostics;
using Npgsql;

const string Role = "efcore";
var wrong = 0;

// Each holder would be a process of its own. That they share a pool of connections makes it harder here: what one
// leaves behind on a connection, the other would find.
await using var database = NpgsqlDataSource.Create(ConnectionString());
var witness = new Witness();
FenceClaim? claimOfA = null, claimOfB = null;

await SetUpAsync();
claimOfA = await AcquireAsync("A");
var (a, b) = (claimOfA.Token, 0L);

await using (var context = new AccountContext(Options(() => null)))
{
    context.Add(new Account { Id = 1, Owner = "nobody" });
    await RefusedAsync("an insert without a claim", "LF002", 1, context);
}

await using (var context = ContextOfA())
{
    context.Add(new Account { Id = 1, Owner = "ann", Balance = 100 });
    context.Add(new Account { Id = 2, Owner = "bob", Balance = 50 });
    await SavedAsync("A's inserts", a, context);
}

await using (var context = ContextOfA())
{
    var account = await context.Accounts.SingleAsync(x => x.Id == 1);
    account.Balance += 10;
    context.Update(account);        // as many applications do: all columns are written
    await SavedAsync("A's Update()", a, context);
    Check("... which wrote the token column too",
        witness.Statement.Contains("written_by_token = @", StringComparison.Ordinal));
    Check("... in a transaction, though it was one statement", witness.Transactions == 1);
}

using (var context = ContextOfA())
{
    context.Accounts.Single(x => x.Id == 2).Balance += 5;
    context.SaveChanges();
    Check("A's synchronous SaveChanges(): saved", await RowAsync(2) == new Row("bob", 55, a));
}

// A reads a row, renews for the last time, and pauses with the change in hand. B waits until the server gives it the
// lease.
await using var paused = ContextOfA();
var inHand = await paused.Accounts.SingleAsync(x => x.Id == 1);
inHand.Balance += 1000;
paused.Update(inHand);
await ScalarAsync("SELECT lease_renew($1, $2, $3, $4)", Role, claimOfA.Holder, a, TimeSpan.FromSeconds(1));
claimOfB = await AcquireAsync("B", behind: claimOfA);
b = claimOfB.Token;
Check("B's token is higher than A's", b > a);

await RefusedAsync("the save that A had in hand", "LF001", 1, paused);

await using (var context = ContextOfB())
{
    var account = await context.Accounts.SingleAsync(x => x.Id == 1);
    Check("B reads A's stamp", account.WrittenByToken == a);
    account.Balance += 1;
    context.Update(account);
    await SavedAsync("B's Update(), which writes A's stamp back", b, context);
}

// A still does not know. Now even the stamp that it writes back is the current one. It is refused all the same: what
// counts is the claim.
await using (var context = ContextOfA())
{
    var account = await context.Accounts.SingleAsync(x => x.Id == 1);
    Check("A reads B's stamp", account.WrittenByToken == b);
    account.Balance += 1000;
    context.Update(account);
    await RefusedAsync("A's Update(), which writes B's stamp back", "LF001", 1, context);
    context.ChangeTracker.Clear();
    context.Add(new Account { Id = 3, Owner = "eve" });
    await RefusedAsync("A's insert", "LF001", 3, context);
    context.ChangeTracker.Clear();
    context.Remove(account);
    await RefusedAsync("A's delete", "LF001", 1, context);
}

await using (var context = ContextOfB())
{
    var account = await context.Accounts.SingleAsync(x => x.Id == 1);
    account.Balance += 1;
    context.Update(account);
    await SavedAsync("B's Update(), which writes its own stamp back", b, context);
}

// An entity that lives long keeps the stamp that it was read with. When it is saved for the second time, that stamp is
// neither in the row nor current. To the guard this is a stale writer, and so it may be.
await using (var context = ContextOfB())
{
    var account = await context.Accounts.SingleAsync(x => x.Id == 2);
    account.Balance += 1;
    context.Update(account);
    await SavedAsync("B's first Update() of one entity", b, context);
    account.Balance += 1;
    context.Update(account);
    await RefusedAsync("B's second, which still writes A's stamp back", "LF001", 2, context);
}

// With the column mapped as made by the database there is nothing to go stale.
await using (var context = new StampedAccountContext(Options(() => claimOfB)))
{
    await ScalarAsync(
        "UPDATE efcore_account SET balance = 56, written_by_token = lease_require_fence($1, $2, $3) WHERE id = 2",
        Role, claimOfB.Holder, b);
    var account = await context.Accounts.SingleAsync(x => x.Id == 2);
    for (var i = 1; i <= 2; i++)
    {
        account.Balance += 1;
        context.Update(account);
        await SavedAsync($"B's Update() number {i} of one entity, with the column mapped as generated", b, context);
        Check("... which reads the stamp back", account.WrittenByToken == b);
    }
}

// Statements that bypass SaveChanges need a transaction around them, and with it comes the claim.
await using (var context = ContextOfB())
{
    var before = await RowAsync(2);
    try
    {
        await context.Accounts.Where(x => x.Id == 2).ExecuteUpdateAsync(set => set.SetProperty(x => x.Balance, 0));
        Check("ExecuteUpdate outside of a transaction: was not refused", false);
    }
    catch (PostgresException e)
    {
        Check("ExecuteUpdate outside of a transaction: refused, LF002",
            e.SqlState == "LF002" && await RowAsync(2) == before);
    }

    await context.Database.CreateExecutionStrategy().ExecuteAsync(async () =>
    {
        await using var transaction = await context.Database.BeginTransactionAsync();
        await context.Accounts.Where(x => x.Id == 2).ExecuteUpdateAsync(set => set.SetProperty(x => x.Balance, 70));
        await transaction.CommitAsync();
    });
    Check("ExecuteUpdate in a transaction: done", await RowAsync(2) == new Row("bob", 70, b));
}

await using (var connection = await database.OpenConnectionAsync())
await using (var context = new AccountContext(Options(() => claimOfB, connection)))
{
    await using var transaction = await connection.BeginTransactionAsync();
    await context.Database.UseTransactionAsync(transaction);
    (await context.Accounts.SingleAsync(x => x.Id == 2)).Balance += 1;
    await context.SaveChangesAsync();
    await transaction.CommitAsync();
    Check("a save in the application's own transaction: saved", await RowAsync(2) == new Row("bob", 71, b));
}

// The connection breaks in the middle of a save: the execution strategy tries again, and the new transaction shows the
// claim again.
await using (var context = ContextOfB())
{
    var account = await context.Accounts.SingleAsync(x => x.Id == 1);
    account.Balance += 1;
    context.Update(account);
    witness.BeforeNextStatement = async statement =>
    {
        await using var self = statement.Connection!.CreateCommand();
        self.Transaction = statement.Transaction;
        self.CommandText = "SELECT pg_backend_pid()";
        var pid = (int)(await self.ExecuteScalarAsync())!;
        await ScalarAsync("SELECT pg_terminate_backend($1, 10000)", pid);
    };
    await SavedAsync("B's Update(), whose connection is terminated after the claim", b, context);
    Check("... at the second try", witness.Transactions == 2);
}

Check("no claim is left on any connection", await ClaimsLeftAsync() == 0);
Check("B releases", await ScalarAsync("SELECT lease_release($1, $2, $3)", Role, claimOfB.Holder, b) is true);
Console.WriteLine(wrong == 0 ? "all as it must be" : $"{wrong} wrong");
return wrong == 0 ? 0 : 1;

AccountContext ContextOfA() => new(Options(() => claimOfA));

AccountContext ContextOfB() => new(Options(() => claimOfB));

// What an application with dependency injection writes into AddDbContext.
DbContextOptions Options(Func<FenceClaim?> claim, DbConnection? connection = null)
{
    var builder = new DbContextOptionsBuilder();
    if (connection is null)
    {
        builder.UseNpgsql(database, npgsql => npgsql.EnableRetryOnFailure());       // not of LF001
    }
    else
    {
        builder.UseNpgsql(connection);
    }

    return builder.AddInterceptors(witness, new FenceInterceptor(claim)).Options;
}

async Task SetUpAsync()
{
    await ScalarAsync("DROP TABLE IF EXISTS efcore_account");
    await ScalarAsync(
        """
        CREATE TABLE efcore_account (
            id bigint PRIMARY KEY, owner text NOT NULL, balance numeric NOT NULL, written_by_token bigint)
        """);
    if (await ScalarAsync("SELECT count(*) FROM lease_status WHERE role = $1", Role) is 0L)
    {
        await ScalarAsync("SELECT lease_create($1)", Role);
    }

    await ScalarAsync("SELECT lease_protect('efcore_account', $1, 'written_by_token')", Role);
    await using var context = ContextOfA();     // the first use of a model takes a while; not within a term
    Check("the table is empty and protected", !await context.Accounts.AnyAsync());
}

// Asks until it has got it. The term is long, and no heartbeat is needed: see the csharp example for a real election.
async Task<FenceClaim> AcquireAsync(string name, FenceClaim? behind = null)
{
    var holder = $"{name}-{RandomNumberGenerator.GetHexString(8, lowercase: true)}";
    var refused = 0;
    for (var started = Stopwatch.StartNew(); started.Elapsed < TimeSpan.FromMinutes(1);)
    {
        await using var command = Command(
            "SELECT token, holder_id, retry_after FROM lease_attempt($1, $2, $3)",
            Role, holder, TimeSpan.FromSeconds(30));
        await using var row = await command.ExecuteReaderAsync();
        await row.ReadAsync();
        if (!row.IsDBNull(0))
        {
            var token = row.GetInt64(0);
            Console.WriteLine($"        {name} leads: token {token}");
            if (behind is not null)
            {
                Check($"{name} had to wait for the end of the term before", refused > 0);
            }

            return new FenceClaim(Role, holder, token);
        }

        if (!row.IsDBNull(1))
        {
            var retryAfter = row.GetFieldValue<TimeSpan>(2);
            if (refused++ == 0)
            {
                Console.WriteLine(
                    $"        {name} waits: {row.GetString(1)} leads for another {retryAfter.TotalSeconds:0.0} s");
            }
        }

        await Task.Delay(50);
    }

    throw new TimeoutException($"{name} did not get the lease");
}

async Task SavedAsync(string what, long token, AccountContext context)
{
    var entities = context.ChangeTracker.Entries<Account>()
        .Where(entry => entry.State != EntityState.Unchanged).Select(entry => entry.Entity).ToList();
    witness.Reset();
    await context.SaveChangesAsync();
    var right = entities.Count > 0;
    foreach (var entity in entities)
    {
        right &= await RowAsync(entity.Id) == new Row(entity.Owner, entity.Balance, token);
    }

    Check($"{what}: saved, stamp {token}", right);
}

async Task RefusedAsync(string what, string sqlState, long id, AccountContext context)
{
    var before = await RowAsync(id);
    witness.Reset();
    try
    {
        await context.SaveChangesAsync();
        Check($"{what}: was not refused", false);
    }
    catch (DbUpdateException e) when (e.InnerException is PostgresException refusal)
    {
        Check(
            $"{what}: refused, {refusal.SqlState} {refusal.MessageText}. {refusal.Detail}".TrimEnd(),
            refusal.SqlState == sqlState && await RowAsync(id) == before && witness.Transactions == 1);
    }
}

void Check(string what, bool right)
{
    wrong += right ? 0 : 1;
    Console.WriteLine($"{(right ? "ok" : "WRONG"),-7} {what}");
}

async Task<Row?> RowAsync(long id)
{
    await using var command = Command("SELECT owner, balance, written_by_token FROM efcore_account WHERE id = $1", id);
    await using var row = await command.ExecuteReaderAsync();
    return await row.ReadAsync()
        ? new Row(row.GetString(0), row.GetDecimal(1), row.IsDBNull(2) ? null : row.GetInt64(2))
        : null;
}

// How many of several connections, held at the same time, have a claim outside of a transaction.
async Task<int> ClaimsLeftAsync()
{
    var connections = new List<NpgsqlConnection>();
    var left = 0;
    try
    {
        for (var i = 0; i < 5; i++)
        {
            connections.Add(await database.OpenConnectionAsync());
            await using var command = new NpgsqlCommand(
                "SELECT current_setting('leader_lease.fence', true)", connections[^1]);
            left += await command.ExecuteScalarAsync() is string { Length: > 0 } ? 1 : 0;
        }
    }
    finally
    {
        connections.ForEach(connection => connection.Dispose());
    }

    return left;
}

NpgsqlCommand Command(string sql, params object[] arguments)
{
    var command = database.CreateCommand(sql);
    foreach (var argument in arguments)
    {
        command.Parameters.Add(new NpgsqlParameter { Value = argument });
    }

    return command;
}

async Task<object?> ScalarAsync(string sql, params object[] arguments)
{
    await using var command = Command(sql, arguments);
    return await command.ExecuteScalarAsync();
}

static string ConnectionString()
{
    static string? Variable(string name) => Environment.GetEnvironmentVariable(name);
    return new NpgsqlConnectionStringBuilder
    {
        // Npgsql itself reads PGUSER, PGPASSWORD, PGPASSFILE, PGSSLCERT, PGSSLKEY and PGSSLROOTCERT, but not these:
        Host = Variable("PGHOST") ?? "localhost",
        Port = int.Parse(Variable("PGPORT") ?? "5432", CultureInfo.InvariantCulture),
        Database = Variable("PGDATABASE"),
        ApplicationName = Variable("PGAPPNAME") ?? "efcore",
        SslMode = Enum.Parse<SslMode>((Variable("PGSSLMODE") ?? "prefer").Replace("-", ""), ignoreCase: true),

        // For pgbouncer with pool_mode = transaction: no DISCARD ALL, no prepared statements, one command at a time.
        NoResetOnClose = true,
        MaxAutoPrepare = 0,
        Multiplexing = false,

        IncludeErrorDetail = true,      // LF001's DETAIL tells why; Npgsql hides it otherwise
    }.ConnectionString;
}

internal sealed record Row(string Owner, decimal Balance, long? Token);

/// <summary>Counts the transactions and keeps the last statement: what EF Core really does.</summary>
internal sealed class Witness : DbTransactionInterceptor, IDbCommandInterceptor
{
    public int Transactions { get; private set; }

    public string Statement { get; private set; } = "";

    /// <summary>To be done once, between the begin of the transaction and EF Core's first statement in it.</summary>
    public Func<DbCommand, Task>? BeforeNextStatement { get; set; }

    public void Reset() => (Transactions, Statement) = (0, "");

    public override ValueTask<InterceptionResult<DbTransaction>> TransactionStartingAsync(
        DbConnection connection, TransactionStartingEventData eventData, InterceptionResult<DbTransaction> result,
        CancellationToken cancellationToken = default)
    {
        Transactions++;
        return ValueTask.FromResult(result);
    }

    public async ValueTask<InterceptionResult<DbDataReader>> ReaderExecutingAsync(
        DbCommand command, CommandEventData eventData, InterceptionResult<DbDataReader> result,
        CancellationToken cancellationToken = default)
    {
        Statement = command.CommandText;
        if (BeforeNextStatement is { } disturb)
        {
            BeforeNextStatement = null;
            await disturb(command);
        }

        return result;
    }
}
