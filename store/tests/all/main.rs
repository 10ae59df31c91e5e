//! What the stores promise, proven on each of them.

mod promises;
