//! What the engine promises, checked from outside on real stores.
//!
//! `crash` kills a process in the middle of its work, `simulation` compares random work with a plain model, and the
//! rest takes one promise at a time. `EVERTURN_SEED` repeats a random run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]

mod abandoning;
mod approving;
mod backup;
mod budgets;
mod canary;
mod carrying;
mod checkpoints;
mod child;
mod compacting;
mod context;
mod counting;
mod crash;
mod damage;
mod dice;
mod doctor;
mod editing;
mod embedders;
mod erasing;
mod facts;
mod fixtures;
mod generating;
mod importing;
mod keeping;
mod keys;
mod lifecycle;
mod load;
mod meaning;
mod mirror;
mod model;
mod model_clients;
mod model_faults;
mod nodes;
mod payloads;
mod processes;
mod projecting;
mod ranking;
mod recall;
mod recalled;
mod refusals;
mod reimporting;
mod schemas;
mod script;
mod scripted_server;
mod session_files;
mod sessions;
mod simulation;
mod stage;
mod streaming;
mod subscribing;
mod told;
mod transfer;
