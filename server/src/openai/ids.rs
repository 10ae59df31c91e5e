//! Ids of responses and items that lead back to a turn without a table.
//!
//! A response is `resp_` and the ULID of the reply's turn. An item is a prefix for its kind, the ULID of its
//! turn and, for the second item of that kind and later ones, a number: `msg_01J…`, `fc_01J…`, `fc_01J…_1`. The
//! items of one reply are all named after its first turn, the one that was open while it was streamed: so they
//! have their ids in the stream already, even if the reply becomes several turns.

use everturn_core::id::TurnId;

const RESPONSE: &str = "resp_";

/// The id of the response for a turn.
pub fn response(turn: TurnId) -> String {
    format!("{RESPONSE}{}", ulid(turn))
}

/// Time at which the turn of a response was begun, in seconds since 1970, taken from its id.
pub fn created(turn: TurnId) -> u64 {
    turn.0.timestamp_ms() / 1000
}

/// The turn of a response.
pub fn turn_of_response(id: &str) -> Option<TurnId> {
    turn(id.strip_prefix(RESPONSE)?)
}

/// The id of an item: its type, the turn, and the number of its kind before it.
pub fn item(kind: &str, of: TurnId, nth: usize) -> String {
    let word = match kind {
        "message" => "msg",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "reasoning" => "rs",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        kind => kind,
    };
    match nth {
        0 => format!("{word}_{}", ulid(of)),
        nth => format!("{word}_{}_{nth}", ulid(of)),
    }
}

/// The turn that an item is named after.
pub fn turn_of_item(id: &str) -> Option<TurnId> {
    let (rest, last) = id.rsplit_once('_')?;
    turn(last).or_else(|| {
        last.parse::<usize>().ok()?;
        turn(rest.rsplit_once('_')?.1)
    })
}

fn ulid(of: TurnId) -> String {
    of.to_string().split_off(TurnId::PREFIX.len())
}

fn turn(ulid: &str) -> Option<TurnId> {
    format!("{}{ulid}", TurnId::PREFIX).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back() {
        let turn = TurnId::from_bytes([7; 16]);
        assert_eq!(turn_of_response(&response(turn)), Some(turn));
        for (kind, nth, begins) in
            [("message", 0, "msg_"), ("function_call", 12, "fc_"), ("web_search_call", 1, "web_search_call_")]
        {
            let id = item(kind, turn, nth);
            assert!(id.starts_with(begins), "{id}");
            assert_eq!(turn_of_item(&id), Some(turn), "{id}");
        }
        for foreign in ["", "msg", "msg_", "msg_abc", "msg_68f0c1", "resp_1", "msg_1_2", "_", "msg_🦀"] {
            assert_eq!((turn_of_item(foreign), turn_of_response(foreign)), (None, None), "{foreign}");
        }
    }
}
