//! A conversation from its first word to its proof, on plain threads.
//!
//! `cargo run -p everturn --example sync`

use everturn::{AppendOptions, Error, Everturn, NewStream, NewTurn, Update};

fn main() -> Result<(), Error> {
    let folder = tempfile::tempdir().expect("a folder to write to");
    let store = Everturn::open(&format!("sqlite:{}", folder.path().join("chats.db").display()))?;
    let me = store.tenant("default")?;

    // Every write answers with a `Commit`. Once `wait` returns, what it tells of survives a power loss.
    let chat = me.create("The way to the station").wait()?;

    // With a key, a request can be sent again after a lost answer: it is written once.
    let once = AppendOptions { idempotency_key: Some("question-1".into()), ..AppendOptions::default() };
    let question = || chat.append("Which way to the station?").by("ann").with(once.clone());
    question().wait()?;
    assert!(question().wait()?.repeated);

    // Someone follows on another thread: first what is there, then what comes.
    let mut live = chat.subscribe(0)?;
    let screen = std::thread::spawn(move || {
        while let Some(update) = live.recv()? {
            match update {
                Update::Chunk(chunk) => println!("          … {}", chunk.text),
                Update::Event(event) => println!("seq {:>3}   {}", event.seq, event.kind),
                Update::Lagged { resume_from } => println!("too slow; again from {resume_from}"),
                Update::Deleted => println!("deleted"),
            }
        }
        Ok::<(), Error>(())
    });

    // A model answers bit by bit. Chunks are shown at once and durable a moment later.
    let answer = chat.open(NewStream { model: Some("m-1".into()), ..NewStream::default() }).wait()?;
    for word in ["Left, ", "then ", "straight on."] {
        chat.open_turn(answer.id).chunk(None, word)?;
    }
    let answer = chat.open_turn(answer.id).commit(NewTurn::default()).wait()?;

    // Nothing is ever changed: a better answer takes the place of the old one, which is kept.
    chat.supersede(answer.id, NewTurn::assistant("Right, then straight on.")).wait()?;

    // A fork shares the history up to a place, without copying it.
    let what_if = chat.fork(2).wait()?;
    what_if.append(NewTurn::assistant("Take the tram.")).wait()?;

    // The chain proves that the log is what was written.
    let report = chat.log().verify(None)?;
    println!("verified  {} events, head {}", report.events, report.head.hash);

    // Closing the store ends the subscription.
    drop((me, store));
    screen.join().expect("the screen does not panic")
}
