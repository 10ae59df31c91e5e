//! Counts the memory held by each thread, because the interpreter does not.
//!
//! Rhai bounds one value at a time, and a script can hold as many values as it has places for them: variables, and
//! arguments that wait for the others, at every depth of calls. Only the allocator sees all of it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// An allocator that also counts, for each thread, how many bytes it took and did not give back. Programs that run
/// scripts install it around the allocator of their choice:
///
/// ```
/// # use everturn_engine as everturn;
/// use everturn::script::Metered;
///
/// #[global_allocator]
/// static ALLOCATOR: Metered<std::alloc::System> = Metered(std::alloc::System);
/// # fn main() {}
/// ```
pub struct Metered<A>(pub A);

/// Bytes that this thread took and did not give back; negative if it gave back what others took.
pub(super) fn held() -> isize {
    HELD.get()
}

/// Whether allocations are counted at all.
pub(super) fn is_installed() -> bool {
    let before = held();
    let kept = std::hint::black_box(Box::new(0_u64));
    let counted = held() != before;
    drop(kept);
    counted
}

fn count(bytes: usize, sign: isize) {
    HELD.set(HELD.get().wrapping_add(sign * bytes as isize));
}

// SAFETY: every call goes to the inner allocator unchanged. The counter is a plain cell that needs no allocation, no
// initialisation and no destructor, so it can be touched at any moment of a thread's life.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Metered<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        unsafe { self.0.realloc(at, layout, size) }
    }
}
