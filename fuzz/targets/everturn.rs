//! Hands a target to libFuzzer: the one that `EVERTURN_FUZZ_TARGET` names. `fuzz/run` sets it.

#![no_main]

use everturn_fuzz::{TARGETS, Target, regressions, seeds, target};
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::LazyLock;

static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("EVERTURN_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        // Also how `fuzz/run` learns their names.
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        std::process::exit(if name == "list" { 0 } else { 2 })
    })
});

/// libFuzzer reads the folder of the corpus after this.
fn write_seeds() {
    let Some(folder) = std::env::var_os("EVERTURN_FUZZ_SEEDS") else { return };
    let regressions = regressions(&CHOSEN).into_iter().map(|(_, input)| input);
    for (at, input) in seeds(&CHOSEN).into_iter().chain(regressions).enumerate() {
        std::fs::write(Path::new(&folder).join(format!("seed-{at:04}")), input).expect("the corpus cannot be written");
    }
}

fuzz_target!(
    init: {
        LazyLock::force(&CHOSEN);
        write_seeds();
    },
    |input: &[u8]| (CHOSEN.read)(input)
);
