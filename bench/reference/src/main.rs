//! Times the projections of the reference implementation (crate `harn-vm`) on the transcripts of
//! `everturn-bench project`, which starts this binary and reads its output: one JSON object for each policy and
//! size.
//!
//! Only the projection is timed, as in the reference's own benches: its transcript value is built before, and
//! the result is dropped after the clock has stopped. Both sides use the same allocator.

#[path = "../../src/allocations.rs"]
mod allocations;
#[path = "../../src/processor.rs"]
mod processor;
#[path = "../../src/project_fixture.rs"]
mod project_fixture;

use harn_vm::bench_internals::transcript_projection::{project_for_bench, transcript_value_from_messages};
use harn_vm::{AsyncBuiltinCtx, DictMap, Vm, VmDictExt, VmValue};
use project_fixture::{SIZES, messages, policies};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// Minimum duration of a measurement, and minimum number of timed calls.
const TIME_MIN: Duration = Duration::from_millis(250);
const RUNS_MIN: usize = 30;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting(mimalloc::MiMalloc);

fn main() -> Result<()> {
    if std::env::args().skip(1).ne(["project".to_string()]) {
        return Err("usage: everturn-bench-reference project".into());
    }
    let (runtime, tasks) =
        (tokio::runtime::Builder::new_current_thread().enable_all().build()?, LocalSet::new());
    let mut vm = harn_vm::new_vm();
    harn_vm::register_vm_stdlib(&mut vm);
    let projector = projector(&runtime, &tasks, &mut vm)?;
    for tokens in SIZES {
        let transcript = transcript_value_from_messages(&messages(tokens));
        for (policy, options) in policies() {
            let ctx = AsyncBuiltinCtx::from_vm(vm.child_vm());
            let project = || tasks.block_on(&runtime, project_for_bench(&ctx, &transcript, &options));
            println!("{}", measured(policy, tokens, project)?);
        }
        // The entry point for benches takes options as JSON, which cannot hold a closure: so the builtin itself
        // is called.
        let project = || {
            let mut options = DictMap::new();
            options.put_str("policy", "custom");
            options.put("projector", projector.clone());
            let args = vec![transcript.clone(), VmValue::dict(options)];
            tasks.block_on(&runtime, vm.call_named_builtin("transcript_project", args))
        };
        println!("{}", measured("custom", tokens, project)?);
    }
    Ok(())
}

/// A projector that keeps all messages but the first.
fn projector(runtime: &Runtime, tasks: &LocalSet, vm: &mut Vm) -> Result<VmValue> {
    let source = "pipeline default() { return fn(messages) { return messages.skip(1) } }";
    let chunk = harn_vm::compile_source(source)?;
    tasks.block_on(runtime, vm.execute(&chunk)).map_err(|error| format!("{error:?}").into())
}

fn measured(
    policy: &str,
    tokens: usize,
    mut project: impl FnMut() -> Result<VmValue, harn_vm::VmError>,
) -> Result<serde_json::Value> {
    let view = project().map_err(|error| format!("{policy}: {error:?}"))?;
    let field = |name: &str| view.as_dict().and_then(|view| view.get(name)).cloned().unwrap_or(VmValue::Nil);
    let times = timed(&mut project);
    let (allocations, allocated_bytes) = allocations::of(project);
    Ok(json!({
        "policy": policy,
        "tokens": tokens,
        "min_us": times[0],
        "runs": times.len(),
        "kept": field("kept_count").as_int(),
        "dropped": field("dropped_count").as_int(),
        "redacted": field("redacted_count").as_int(),
        "prefix_hash": field("prefix_hash").display(),
        "allocations": allocations,
        "allocated_bytes": allocated_bytes,
    }))
}

/// Times a call repeatedly: microseconds, the shortest first.
fn timed<T>(mut call: impl FnMut() -> T) -> Vec<f64> {
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < RUNS_MIN || began.elapsed() < TIME_MIN {
        times.push(processor::once(&mut call).0);
    }
    times.sort_by(f64::total_cmp);
    times
}
