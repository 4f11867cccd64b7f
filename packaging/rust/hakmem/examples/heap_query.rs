//! A query's heap below its tenant's: what the query allocates is counted and capped, and lives on if it leaves the scope.
use hakmem::{Error, Hakmem, Heap};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem;

fn main() -> Result<(), Error> {
    let tenant = Heap::builder().name("tenant").limit(64 << 20).build()?;
    let query = Heap::builder().name("query").limit(1 << 20).parent(&tenant).build()?;
    let rows: Vec<String> = query.scope(|| (0..1000).map(|n| n.to_string()).collect());
    assert_eq!(query.stats().blocks, 1001);
    assert!(tenant.stats().total >= query.stats().live);
    drop(query); // without its blocks: they live on in the main heap
    assert_eq!(rows[999], "999");
    Ok(())
}
