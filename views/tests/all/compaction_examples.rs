//! Examples of extracted checkpoints, as shown in the documentation.

use crate::compaction_talk::Talk;
use everturn_views::compaction::{extract, render};
use serde_json::json;

fn debugging() -> Talk {
    let mut talk = Talk::of(&[
        (
            "user",
            "Hi! Logins time out on staging since yesterday. Please find out why and fix it. The ticket is OPS-1142. \
                  You must not touch the production database, and never restart auth-gateway during office hours.",
        ),
        ("assistant", "I'll look at the session code and the logs first."),
    ]);
    talk.tool("grep", json!({"pattern":"session_timeout","path":"services/auth"}), "services/auth/src/session.rs:48: let session_timeout = Duration::from_millis(250);\nservices/auth/src/config.rs:12: pub session_timeout: u64,");
    talk.tool("read_file", json!({"path":"services/auth/src/session.rs"}), "pub fn open(id: SessionId) -> Result<Session, Error> {\n    let session_timeout = Duration::from_millis(250);\n}");
    talk.tool("shell", json!({"command":"cargo test -p auth session"}), "running 14 tests\nerror: test session::expires failed\nthread 'session::expires' panicked at src/session.rs:61\ntest result: FAILED. 13 passed; 1 failed");
    talk.say(None, json!({"role":"assistant","content":"The root cause is in `services/auth/src/session.rs`: commit 9f3c2ab lowered the session timeout from 5 s to 250ms. \
        Redis on staging answers in about 400ms, so every login fails.\n\nShould the timeout be configurable, or is a fixed value of 5 s enough?"}));
    talk.say(Some("user"), json!({"role":"user","content":"Configurable, with 5 s as the default."}));
    talk.tool("edit_file", json!({"path":"services/auth/src/config.rs"}), "ok");
    talk.tool("edit_file", json!({"path":"services/auth/src/session.rs"}), "ok");
    talk.tool(
        "shell",
        json!({"command":"cargo test -p auth session"}),
        "running 14 tests\ntest result: ok. 14 passed; 0 failed",
    );
    talk.say(None, json!({"role":"assistant","content":"Added `session_timeout_ms` to `services/auth/src/config.rs` (default 5000) and removed the hard-coded value. All 14 tests pass.\n\n\
        Next steps:\n- Deploy to staging and watch https://grafana.internal/d/auth-latency\n- Document `session_timeout_ms` in docs/config.md"}));
    talk.say(Some("user"), json!({"role":"user","content":"Great. Do we also need to raise the limit in the mobile client? I'd say ask Priya."}));
    talk.say(None, json!({"role":"assistant","content":"I'm not sure: the mobile client has its own limit of 10 s, and I have no access to its repository. I'll ask Priya."}));
    talk
}

fn planning() -> Talk {
    Talk::of(&[
        (
            "maya",
            "Hey both! We need a venue for the team offsite in September. 14 people, two nights, and at most 9,000 EUR all in.",
        ),
        ("jonas", "Nice. I'd prefer somewhere we can reach by train, nobody should have to fly."),
        ("lee", "Agreed on trains. Also Tomasz uses a wheelchair, so the place must have step-free rooms."),
        (
            "maya",
            "Good point, thanks! I found two options: Gut Lindenhof near Templin for 7,400 EUR and the Seehotel in Waren for 8,900 EUR.",
        ),
        ("jonas", "Seehotel has no step-free rooms, I called them. Lindenhof has three."),
        ("maya", "Then how about Lindenhof from September 17 to 19?"),
        ("lee", "Sounds good to me! The 19th works as long as we are back by 18:00."),
        ("maya", "Let's go with Lindenhof then. I'll send the booking request today."),
        ("jonas", "Who takes care of the workshop agenda?"),
        ("lee", "I'll do a first draft by Friday, in https://docs.example.org/offsite-agenda."),
        ("maya", "Booked! The confirmation number is LH-20931, and the deposit of 1,500 EUR is paid."),
        ("jonas", "Perfect. Do we want a guided canoe tour on the second day?"),
        ("maya", "Not sure yet, let me ask the hotel what it costs."),
        ("lee", "I still need to know about food allergies. Please everyone write them into the sheet."),
        (
            "jonas",
            "I'm allergic to nuts. And please don't plan anything before 9:30, the first train arrives at 9:12.",
        ),
        ("maya", "Noted. Open question: does the hotel provide a projector, or do we bring ours?"),
    ])
}

fn german() -> Talk {
    Talk::of(&[
        (
            "user",
            "Guten Morgen! Ich möchte im Frühjahr unseren Schrebergarten neu anlegen und brauche Hilfe bei der Planung. Der Garten hat 240 m² und liegt in Leipzig.",
        ),
        (
            "assistant",
            "Guten Morgen! Das klingt nach einem schönen Vorhaben. Wie viel Zeit pro Woche habt ihr für die Pflege?",
        ),
        (
            "user",
            "Höchstens vier Stunden. Wir haben zwei kleine Kinder, also bitte nichts Giftiges pflanzen.",
        ),
        (
            "assistant",
            "Dann empfehle ich Stauden statt Wechselbeeten. Laut Satzung muss bei Kleingärten ein Drittel der Fläche für Obst und Gemüse genutzt werden. Gibt es schon Obstbäume?",
        ),
        (
            "user",
            "Ja, einen alten Apfelbaum, der auf jeden Fall stehen bleiben soll. Der Verein schreibt übrigens vor, dass die Hecke nie höher als 1,20 m sein darf.",
        ),
        (
            "assistant",
            "Gut zu wissen. Unter dem Apfelbaum wächst wenig, weil der Boden dort trocken ist. Ich schlage vor, dort eine Sitzecke anzulegen und das Gemüse auf die Südseite zu legen.",
        ),
        (
            "user",
            "Einverstanden, so machen wir es. Für die Wege nehmen wir Rindenmulch, das ist billiger als Kies.",
        ),
        (
            "assistant",
            "Ein Kubikmeter Rindenmulch kostet etwa 45 €, ihr braucht drei davon. Für Hochbeete solltet ihr noch einmal 300 € einplanen.",
        ),
        (
            "user",
            "Das passt, unser Budget liegt bei 800 €. Ich habe gestern schon zwei Hochbeete bestellt, sie kommen am 12. März.",
        ),
        ("assistant", "Prima. Als nächstes müsst ihr den Boden testen lassen, bevor ihr Kalk ausbringt."),
        ("user", "Wo kann man in Leipzig Bodenproben abgeben?"),
        ("assistant", "Das weiß ich nicht sicher, da müsste man beim Kleingartenverband nachfragen."),
        (
            "user",
            "Gut, ich rufe dort am Montag an. Und der Regenwassertank fehlt noch, da brauchen wir mindestens 500 Liter.",
        ),
    ])
}

#[test]
fn a_debugging_session_with_tools() {
    let checkpoint = extract(None, &debugging().candidates());
    assert_eq!(
        render(&checkpoint),
        r#"**Goal:** Logins time out on staging since yesterday. Please find out why and fix it.

**Where things stand**

- Added `session_timeout_ms` to `services/auth/src/config.rs` (default 5000) and removed the hard-coded value.
- All 14 tests pass.
- The root cause is in `services/auth/src/session.rs`: commit 9f3c2ab lowered the session timeout from 5 s to 250ms.
- Redis on staging answers in about 400ms, so every login fails.

**Decided**

- Should the timeout be configurable, or is a fixed value of 5 s enough? → Configurable, with 5 s as the default.

**Open**

- Do we also need to raise the limit in the mobile client?

**Next**

- Deploy to staging and watch https://grafana.internal/d/auth-latency
- Document `session_timeout_ms` in docs/config.md

**User constraints**

- You must not touch the production database, and never restart auth-gateway during office hours.

**Completed work**

- Ran edit_file: services/auth/src/config.rs, services/auth/src/session.rs

**Identifiers**

OPS-1142

**Files**

services/auth/src/config.rs, services/auth/src/session.rs, docs/config.md"#
    );
}

#[test]
fn a_planning_conversation_between_people() {
    let checkpoint = extract(None, &planning().candidates());
    assert_eq!(
        render(&checkpoint),
        r#"**Goal:** We need a venue for the team offsite in September.

**Where things stand**

- maya: The confirmation number is LH-20931, and the deposit of 1,500 EUR is paid.
- maya: I found two options: Gut Lindenhof near Templin for 7,400 EUR and the Seehotel in Waren for 8,900 EUR.
- jonas: Seehotel has no step-free rooms, I called them.

**Decided**

- lee: Agreed on trains.
- maya: Then how about Lindenhof from September 17 to 19? → lee: Sounds good to me!
- maya: Let's go with Lindenhof then.

**Open**

- Do we want a guided canoe tour on the second day?
- Open question: does the hotel provide a projector, or do we bring ours?

**Next**

- lee: I'll do a first draft by Friday, in https://docs.example.org/offsite-agenda.
- lee: I still need to know about food allergies.

**User constraints**

- maya: 14 people, two nights, and at most 9,000 EUR all in.
- jonas: I'd prefer somewhere we can reach by train, nobody should have to fly.
- lee: Also Tomasz uses a wheelchair, so the place must have step-free rooms.
- lee: The 19th works as long as we are back by 18:00.
- jonas: I'm allergic to nuts.
- jonas: And please don't plan anything before 9:30, the first train arrives at 9:12."#
    );
}

#[test]
fn a_german_conversation_about_a_garden() {
    let checkpoint = extract(None, &german().candidates());
    assert_eq!(
        render(&checkpoint),
        r#"**Goal:** Ich möchte im Frühjahr unseren Schrebergarten neu anlegen und brauche Hilfe bei der Planung.

**Where things stand**

- user: Ich habe gestern schon zwei Hochbeete bestellt, sie kommen am 12. März.
- Unter dem Apfelbaum wächst wenig, weil der Boden dort trocken ist.
- Ein Kubikmeter Rindenmulch kostet etwa 45 €, ihr braucht drei davon.
- Für Hochbeete solltet ihr noch einmal 300 € einplanen.

**Decided**

- Ich schlage vor, dort eine Sitzecke anzulegen und das Gemüse auf die Südseite zu legen.
- Für die Wege nehmen wir Rindenmulch, das ist billiger als Kies.

**Open**

- Wo kann man in Leipzig Bodenproben abgeben?

**Next**

- Als nächstes müsst ihr den Boden testen lassen, bevor ihr Kalk ausbringt.
- user: Gut, ich rufe dort am Montag an.
- Und der Regenwassertank fehlt noch, da brauchen wir mindestens 500 Liter.

**User constraints**

- Wie viel Zeit pro Woche habt ihr für die Pflege? → Höchstens vier Stunden.
- Wir haben zwei kleine Kinder, also bitte nichts Giftiges pflanzen.
- Ja, einen alten Apfelbaum, der auf jeden Fall stehen bleiben soll.
- Der Verein schreibt übrigens vor, dass die Hecke nie höher als 1,20 m sein darf.
- Das passt, unser Budget liegt bei 800 €.

**Discoveries**

- Der Garten hat 240 m² und liegt in Leipzig.
- Dann empfehle ich Stauden statt Wechselbeeten.
- Laut Satzung muss bei Kleingärten ein Drittel der Fläche für Obst und Gemüse genutzt werden."#
    );
}
