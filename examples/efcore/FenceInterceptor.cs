// Shows the fence to the database in every transaction of a DbContext, without a change to its model or statements.
// This file stands alone: copy it.
//
//     options.UseNpgsql(…).AddInterceptors(new FenceInterceptor(() => claim of the present term, or null));

using System.Data.Common;
using System.Text.Json;
using Microsoft.EntityFrameworkCore;
using Microsoft.EntityFrameworkCore.Diagnostics;

namespace EfCoreAdoption;

/// <summary>The term that this process works in: the lease, the holder, and its fencing token.</summary>
public sealed record FenceClaim(string Role, string Holder, long Token)
{
    public string ToJson() => JsonSerializer.Serialize(new { role = Role, holder = Holder, token = Token });
}

/// <summary>
/// Puts the claim into the setting leader_lease.fence as the first statement of each transaction, for that transaction
/// only. The guard of a protected table takes the fence from it at the first write.
/// </summary>
/// <remarks>
/// <para>
/// Why the transaction and not the connection: behind a transaction pooler the next transaction may run on another
/// server connection, and the next client of that one would write with a claim that was left there.
/// </para>
/// <para>
/// The claim is asked for once a transaction, so a retrying execution strategy shows the claim of the moment. Without a
/// claim nothing is set, and writes to protected tables are refused (LF002): it fails closed. So are ExecuteUpdate,
/// ExecuteDelete and raw SQL outside of a transaction: EF Core begins none for them, and the application has to.
/// </para>
/// </remarks>
public sealed class FenceInterceptor(Func<FenceClaim?> claim) : DbTransactionInterceptor, ISaveChangesInterceptor
{
    public override DbTransaction TransactionStarted(
        DbConnection connection, TransactionEndEventData eventData, DbTransaction result)
    {
        Show(result);
        return result;
    }

    public override async ValueTask<DbTransaction> TransactionStartedAsync(
        DbConnection connection, TransactionEndEventData eventData, DbTransaction result,
        CancellationToken cancellationToken = default)
    {
        await ShowAsync(result, cancellationToken);
        return result;
    }

    /// <summary>A transaction that the application began itself and hands over by UseTransaction.</summary>
    public override DbTransaction TransactionUsed(
        DbConnection connection, TransactionEventData eventData, DbTransaction result)
    {
        Show(result);
        return result;
    }

    public override async ValueTask<DbTransaction> TransactionUsedAsync(
        DbConnection connection, TransactionEventData eventData, DbTransaction result,
        CancellationToken cancellationToken = default)
    {
        await ShowAsync(result, cancellationToken);
        return result;
    }

    // Where one statement is all there is to save, EF Core would leave the transaction out.
    public InterceptionResult<int> SavingChanges(DbContextEventData eventData, InterceptionResult<int> result)
    {
        AlwaysInTransaction(eventData);
        return result;
    }

    public ValueTask<InterceptionResult<int>> SavingChangesAsync(
        DbContextEventData eventData, InterceptionResult<int> result, CancellationToken cancellationToken = default)
    {
        AlwaysInTransaction(eventData);
        return ValueTask.FromResult(result);
    }

    private static void AlwaysInTransaction(DbContextEventData eventData) =>
        eventData.Context!.Database.AutoTransactionBehavior = AutoTransactionBehavior.Always;

    private void Show(DbTransaction transaction)
    {
        if (claim() is not { } present)
        {
            return;
        }

        try
        {
            using var command = Command(transaction, present);
            command.ExecuteNonQuery();
        }
        catch
        {
            transaction.Dispose();      // EF Core does not know it yet, and could not begin another one when it retries
            throw;
        }
    }

    private async Task ShowAsync(DbTransaction transaction, CancellationToken cancellationToken)
    {
        if (claim() is not { } present)
        {
            return;
        }

        try
        {
            await using var command = Command(transaction, present);
            await command.ExecuteNonQueryAsync(cancellationToken);
        }
        catch
        {
            await transaction.DisposeAsync();
            throw;
        }
    }

    private static DbCommand Command(DbTransaction transaction, FenceClaim present)
    {
        var command = transaction.Connection!.CreateCommand();
        command.Transaction = transaction;
        command.CommandText = "SELECT set_config('leader_lease.fence', $1, true)";      // true: SET LOCAL
        var json = command.CreateParameter();
        json.Value = present.ToJson();
        command.Parameters.Add(json);
        return command;     // Npgsql sends BEGIN along with it: no round trip more than BEGIN alone
    }
}
