//! A bound on what a piece of code allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting what each thread has and what it had at most.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(change: isize) {
    // Fails while a thread ends, when nothing is measured any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get().wrapping_add(change));
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

#[expect(unsafe_code, reason = "an allocator can only be written so; it hands everything on to the system's")]
// SAFETY: every call goes to the system's allocator as it came; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there for a moment.
        count(signed(size));
        count(-signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `work` gives back, which on this thread held at most `limit` bytes more than there were at its start.
///
/// # Panics
///
/// If it held more.
pub fn within<T>(limit: usize, work: impl FnOnce() -> T) -> T {
    let before = HELD.get();
    let outer = MOST.replace(before);
    let result = work();
    let most = MOST.replace(outer.max(MOST.get())) - before;
    assert!(most <= signed(limit), "{most} bytes held at once, {limit} at most");
    result
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn what_holds_more_than_its_limit_is_found_even_if_it_gives_it_back() {
        let held = |bytes: usize| within(4096, || drop(std::hint::black_box(vec![0_u8; bytes])));
        held(4096);
        held(4096);
        assert!(std::panic::catch_unwind(|| held(4097)).is_err(), "one byte more");
    }
}
