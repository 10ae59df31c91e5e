//! The same calls, awaited. Any executor will do: nothing here needs a runtime of its own.
//!
//! `cargo run -p everturn --example async`

use everturn::{Error, Everturn, NewStream, NewTurn, Update};
use futures_util::{TryStreamExt, future};

fn main() -> Result<(), Error> {
    futures_executor::block_on(talk())
}

async fn talk() -> Result<(), Error> {
    let folder = tempfile::tempdir().expect("a folder to write to");
    let store = Everturn::open(&format!("sqlite:{}", folder.path().join("chats.db").display()))?;
    let me = store.tenant("default")?;
    let chat = me.create("The way to the station").await?;

    // Requests that wait together are written together: one sync for all of them.
    let questions = ["Who?", "What?", "When?"].map(|text| chat.append(text).into_future());
    let appended = future::try_join_all(questions).await?;
    println!("the last of them has seq {}", appended.last().map_or(0, |done| done.head.seq));

    // A subscription is a `Stream`. Here one future speaks and another listens, on one thread.
    let mut live = chat.subscribe(0)?;
    let speak = async {
        let turn = chat.open(NewStream::default()).await?;
        for word in ["Ann, ", "a ticket, ", "tomorrow."] {
            chat.open_turn(turn.id).chunk(None, word)?;
        }
        chat.open_turn(turn.id).commit(NewTurn::default()).await
    };
    let listen = async {
        while let Some(update) = live.try_next().await? {
            match update {
                Update::Chunk(chunk) => println!("at byte {:>2}: {}", chunk.offset, chunk.text),
                Update::Event(event) if event.kind == "turn.committed" => break,
                Update::Event(event) => println!("seq {}: {}", event.seq, event.kind),
                Update::Lagged { .. } | Update::Deleted => break,
            }
        }
        Ok(())
    };
    let (answer, ()) = future::try_join(speak, listen).await?;

    // Reads run where they are called and never wait for the writer.
    println!("said: {}", answer.text(|_| None));
    println!("{} turns, head {}", chat.get()?.turns, chat.log().verify(None)?.head.hash);
    Ok(())
}
