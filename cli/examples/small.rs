//! The library without features: a conversation in a SQLite file, its history, a context for the next model call, and recall by words.
//!
//! In a program of your own: `cargo add everturn --no-default-features`. Here:
//! `cargo run -p everturn --no-default-features --example small -- chats.db`

use everturn::{ContextOptions, Error, Everturn, HistoryEntry, HistoryQuery, NewTurn, RecallOptions};

fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1).unwrap_or("memory:".into());
    let store = Everturn::open(&path)?;
    let tenant = store.tenant("acme")?;

    let chat = tenant.create("A trip to Oslo").wait()?;
    chat.append("Which day do we leave for Oslo?").by("alice").wait()?;
    chat.append(NewTurn::assistant("On the 3rd of May, by train.")).wait()?;

    for entry in chat.history(HistoryQuery::default())?.data {
        if let HistoryEntry::Turn(turn) = entry {
            println!("{} {:?} at seq {}", turn.id, turn.role, turn.seq);
        }
    }

    let context = chat.contexts().build(&ContextOptions::new(8_000))?;
    println!("{} messages, {} tokens", context.messages.len(), context.tokens.used);

    // A background thread does this within a second.
    store.index_now()?;
    for hit in tenant.recall("train", &RecallOptions::default())?.data {
        println!("found: {}", hit.snippet.text);
    }
    Ok(())
}
