//! What the stores promise, proven on each of them; then what only a file can get wrong.

mod dice;
mod erasure;
mod files;
mod load;
mod promises;
