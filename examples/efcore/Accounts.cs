using Microsoft.EntityFrameworkCore;

namespace EfCoreAdoption;

public sealed class Account
{
    public long Id { get; init; }

    public required string Owner { get; set; }

    public decimal Balance { get; set; }

    /// <summary>The guard's stamp: the token of the term that wrote the row last. A bigint, so never an int.</summary>
    public long? WrittenByToken { get; set; }
}

/// <summary>
/// The application as it was: the stamp is a column like any other. Update() marks it modified with all the others, and
/// whatever the entity has is written back. The guard lets pass what was in the row, what is current, NULL and 0.
/// </summary>
public class AccountContext(DbContextOptions options) : DbContext(options)
{
    public DbSet<Account> Accounts => Set<Account>();

    protected override void OnModelCreating(ModelBuilder modelBuilder)
    {
        var account = modelBuilder.Entity<Account>();
        account.ToTable("efcore_account");
        account.Property(a => a.Id).HasColumnName("id").ValueGeneratedNever();
        account.Property(a => a.Owner).HasColumnName("owner");
        account.Property(a => a.Balance).HasColumnName("balance");
        account.Property(a => a.WrittenByToken).HasColumnName("written_by_token");
    }
}

/// <summary>
/// The better mapping, one line more: the database makes the stamp. EF Core never writes it, and reads it back after
/// each save.
/// </summary>
public sealed class StampedAccountContext(DbContextOptions options) : AccountContext(options)
{
    protected override void OnModelCreating(ModelBuilder modelBuilder)
    {
        base.OnModelCreating(modelBuilder);
        modelBuilder.Entity<Account>().Property(a => a.WrittenByToken).ValueGeneratedOnAddOrUpdate();
    }
}
