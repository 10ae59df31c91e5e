//! Every target reads its seeds, the inputs that once broke it, and mutations of both.
//!
//! The mutations are the same in every run; another `PROPTEST_RNG_SEED` draws others. An input that breaks a promise is
//! written to `fuzz/artifacts/`; once mended, it moves to `fuzz/regressions/TARGET/`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]

use everturn_fuzz::{Mutator, TARGETS, regressions, seeds, target};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// Reads an input. One that breaks a promise is kept in a file.
fn read(name: &str, input: &[u8]) {
    let target = target(name).unwrap();
    let Err(broken) = catch_unwind(AssertUnwindSafe(|| (target.read)(input))) else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("from-test");
    std::fs::write(&file, input).unwrap();
    eprintln!("this input broke a promise: {}", file.display());
    resume_unwind(broken);
}

fn run(name: &str) {
    let target = target(name).unwrap();
    let mut inputs = seeds(target);
    assert!(inputs.len() > 1, "{name} has no seeds");
    inputs.extend(regressions(target).into_iter().map(|(_, input)| input));
    inputs.iter().for_each(|input| read(name, input));
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut mutator = Mutator::new(seed.unwrap_or(20_260_101), inputs);
    for _ in 0..target.rounds {
        read(name, &mutator.next_input());
    }
}

macro_rules! targets {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )+

        #[test]
        fn every_target_has_its_test() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),+]);
        }
    };
}

targets! {
    json names policies redaction assets events message provider document reply words projection checkpoint answer
    jsonl archive transcript session agents acp script import operation http token mcp settings
}
