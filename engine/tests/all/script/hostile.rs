//! Scripts that try to take the process with them.

use super::{of, refusal, said, view};
use everturn_engine::script;
use everturn_views::projection::Message;
use serde_json::json;

const DOOR: &str = "script::hostile::hostile_scripts_are_run_here";
const HOSTILE: &str = "EVERTURN_TEST_HOSTILE";

/// A crash or a swollen process must not be this one.
#[test]
fn hostile_scripts_are_stopped_and_memory_stays_bounded() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", DOOR, "--nocapture"])
        .env(HOSTILE, "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && out.contains("all were stopped"), "{}\n{out}\n{err}", child.status);
}

#[test]
fn hostile_scripts_are_run_here() {
    if std::env::var(HOSTILE).is_err() {
        return;
    }
    let text = said(&[&"a".repeat(8_000_000)]);
    let wide = of(&json!([{"role": "user", "content": vec![json!({"k": 0}); 30_000]}]));
    let stopped = |messages: &[Message], source: &str| {
        let started = std::time::Instant::now();
        let refusal = refusal(messages, source);
        println!(
            "{:>6} ms, peak {} MB: {refusal} from {source}",
            started.elapsed().as_millis(),
            peak_bytes() >> 20
        );
        assert!(refusal.ends_with("[script.limit]"), "{source}: {refusal}");
        // A copy of the messages or a text can come on top of what was held when it was last measured.
        assert!(peak_bytes() < 3 * script::SCRIPT_MEMORY_BYTES_MAX, "{source}: {} bytes", peak_bytes());
    };
    for source in [
        // Growing by doubling: texts, lists, maps, what is shared inside them.
        "let s = \"a\"; loop { s = s + s; }",
        "let s = \"a\"; loop { s = `${s}${s}`; }",
        "let s = messages[0].content; s.replace(\"a\", s)",
        "let s = messages[0].content; s.split(\"a\")",
        "let s = messages[0].content; s.split(\"\")",
        "let s = messages[0].content; [s, s, s, s, s].join(s)",
        "let a = [1]; loop { a = [a, a]; }",
        "let a = [1]; loop { a.push(a); }",
        "let a = [1]; loop { a = a + a; }",
        "let m = #{a: 1}; loop { m = #{a: m, b: m}; }",
        "let m = #{a: 1}; let i = 0; loop { i += 1; m[`${i}`] = m; }",
        "let a = [messages[0].content]; loop { a = a.map(|s| s + \"b\") + a; }",
        // Growing sideways: each value is within its limits, all of them together are not.
        "fn g(a, b, c, d) { 1 } fn f(s) { g(s + \"1\", s + \"2\", s + \"3\", f(s + \"4\")) } f(messages[0].content)",
        "let s = messages[0].content; let f = 0; for i in 0..99 { let a = s + `${i}`; let b = a + 1.to_string(); \
         switch i { _ => { let c = b + \"c\"; let d = c + \"d\"; let e = d + s; let g = e + \"g\"; let h = g + s; \
         let j = h + \"j\"; let k = j + \"k\"; let l = k + \"l\"; let m = l + \"m\"; } } }",
    ] {
        stopped(&text, source);
    }
    for source in [
        "fn f(m) { f(m) } f(messages)",
        "fn f(m) { let a = m; let b = m; let c = m; f(m) } f(messages)",
        "fn g(a, b, c, d) { 1 } fn f(m) { g(m, m, m, f(m)) } f(messages)",
        "loop { messages = messages + messages; }",
        "loop { messages[0].content += messages[0].content; }",
    ] {
        stopped(&wide, source);
    }
    // Growing in depth: every level is a stack frame of whoever copies, compares or drops the value. And growing so
    // slowly that only the clock helps. At the same time, because each takes as long as it may.
    std::thread::scope(|scope| {
        for source in [
            "let a = []; loop { a = [[[[[[[[[[a]]]]]]]]]]; }",
            "let a = #{}; loop { a = #{a: #{a: #{a: #{a: #{a: a}}}}}; }",
            "let a = #{a: 0}; loop { a = #{a: #{a: #{a: #{a: #{a: a.remove(\"a\")}}}}}; }",
            "let a = [0]; let b = [0]; loop { b[0] = a; a = b; }",
            "let a = []; loop { a = [[[[[a]]]]]; a == a; a in [a]; `${a}`; }",
            "let m = #{}; let s = messages[0].content; let i = 0; loop { i += 1; m[`${i}`] = #{s: [s]}; }",
        ] {
            let (stopped, text) = (&stopped, &text);
            scope.spawn(move || stopped(text, source));
        }
    });
    // Scripts that are hard to read. They may be fine, too.
    for part in [
        "(",
        "[",
        "{",
        "#{a:",
        "!",
        "-",
        "- ",
        "a.",
        "a?.",
        "a[",
        "a(",
        "1+",
        "1**",
        "a=",
        "a??",
        "|x| ",
        "||",
        "`${",
        "`",
        "\"",
        "fn f(){",
        "fn f(a){}",
        "if x {} else ",
        "if ",
        "else ",
        "switch x { _ => ",
        "let a = ",
        "let a = 1;",
        "const A = 1;",
        "while ",
        "do {",
        "loop {",
        "for x in ",
        "try {",
        "return ",
        "throw ",
        "/*",
        "//",
        ";",
        ",",
        "a,",
        "1,",
        "..",
        "0..",
        "::",
        "é",
        "messages.filter(|m| ",
        "messages[0].content + ",
        "this.",
        "x => ",
        "\n",
    ] {
        for source in [part.repeat(60_000 / part.len()), format!("[{}]", part.repeat(60_000 / part.len()))] {
            let started = std::time::Instant::now();
            let outcome = view(&text, &source).map(|view| view.kept_count);
            if started.elapsed().as_millis() > 100 {
                println!("{:>6} ms: {outcome:?} from many {part}", started.elapsed().as_millis());
            }
            assert!(outcome.is_ok() || outcome.is_err_and(|e| !e.text().contains("interpreter")), "{part}");
        }
    }
    println!("peak {} MB; all were stopped", peak_bytes() >> 20);
}

/// The most memory that this process ever had; where the system does not tell, nothing.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) * 1024
}
