//! SQLite as a library: what is set for the whole process before the first database is opened.
//!
//! Both settings could be flags of its compiler. But a flag reaches the compiler only from the environment of whoever builds the
//! program, so that `cargo install`, or a program that depends on this crate, would have a slower SQLite without a word.

use rusqlite::ffi;
use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

/// How SQLite was set up.
#[derive(Clone, Copy)]
struct Library {
    /// SQLite does not count its memory, which takes a lock that all threads share.
    is_uncounted: bool,
    /// Name of the layer whose syncs of write-ahead logs leave out the time of the last change.
    layer: Option<&'static CStr>,
}

/// Sets SQLite up, once for the process. To be called before any connection is opened.
pub fn set_up() {
    library();
}

fn library() -> Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let off: c_int = 0;
        // SAFETY: the option takes one integer. SQLite refuses it once it is in use, and changes nothing then.
        let code = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, off) };
        // SAFETY: the name is a C string.
        let is_compiled = unsafe { ffi::sqlite3_compileoption_used(c"DEFAULT_MEMSTATUS=0".as_ptr()) != 0 };
        Library { is_uncounted: code == ffi::SQLITE_OK || is_compiled, layer: layer() }
    })
}

/// Name of the layer for databases that are written, if there is one: commits are syncs of the write-ahead log.
pub fn layer_for_writing() -> Option<&'static CStr> {
    library().layer
}

/// What makes SQLite slower in this program than it could be, and what to do about it; empty if nothing does.
pub fn notices() -> Vec<String> {
    let library = library();
    let mut notices = Vec::new();
    if !library.is_uncounted {
        let text = "SQLite's memory statistics are on, which makes all threads share a lock: this program used SQLite before it opened \
                    a store; open the store first";
        notices.push(text.into());
    }
    if cfg!(target_os = "linux") && library.layer.is_none() {
        let text = "commits also sync the file's modification time, a second write on some disks: SQLite's default VFS is not \"unix\"; \
                    register yours after the store is opened";
        notices.push(text.into());
    }
    notices
}

#[cfg(not(target_os = "linux"))]
fn layer() -> Option<&'static CStr> {
    None
}

#[cfg(target_os = "linux")]
use linux::layer;

/// SQLite syncs with `fsync`, unless the compiler is told that the system has `fdatasync`. `fsync` also writes the time of a file's
/// last change, on some disks a second write to wait for at every commit. A write-ahead log is overwritten from its beginning, so
/// nothing but that time changes beside its bytes.
///
/// The layer here is SQLite's own for Unix. Only a write-ahead log gets another method for syncs, which uses a second descriptor of
/// the file. That is harmless for a write-ahead log: closing a descriptor drops the locks of a process on a file, and SQLite locks
/// the database and the file `-shm`.
#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

    const NAME: &CStr = c"everturn";

    /// SQLite's own layer.
    static UNIX: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(std::ptr::null_mut());

    pub fn layer() -> Option<&'static CStr> {
        // SAFETY: SQLite is initialised by the first call, and hands out layers that live as long as the process. The copy is leaked,
        // so it lives as long. The copy is a layer of its own, whose other methods are those of the original.
        unsafe {
            let unix = ffi::sqlite3_vfs_find(std::ptr::null());
            // Another default layer does something of its own with what it is given: it is left alone.
            if unix.is_null() || CStr::from_ptr((*unix).zName) != c"unix" {
                return None;
            }
            UNIX.store(unix, Ordering::Release);
            let ours = Box::leak(Box::new(*unix));
            ours.zName = NAME.as_ptr();
            ours.pNext = std::ptr::null_mut();
            ours.xOpen = Some(open);
            (ffi::sqlite3_vfs_register(ours, 0) == ffi::SQLITE_OK).then_some(NAME)
        }
    }

    /// The methods of an open write-ahead log. SQLite has a pointer to them in its file.
    #[repr(C)]
    struct Methods {
        ours: ffi::sqlite3_io_methods,
        original: &'static ffi::sqlite3_io_methods,
        file: File,
        is_created: AtomicBool,
    }

    impl Methods {
        /// # Safety
        ///
        /// The file is one whose methods [`open`] has replaced, and which is not closed yet.
        unsafe fn of<'a>(file: *mut ffi::sqlite3_file) -> &'a Methods {
            // SAFETY: `ours` is the first field, so its address is that of the whole.
            unsafe { &*(*file).pMethods.cast::<Methods>() }
        }
    }

    unsafe extern "C" fn open(
        _: *mut ffi::sqlite3_vfs,
        name: ffi::sqlite3_filename,
        file: *mut ffi::sqlite3_file,
        flags: c_int,
        out: *mut c_int,
    ) -> c_int {
        let unix = UNIX.load(Ordering::Acquire);
        // SAFETY: the arguments are passed on as SQLite gave them, to the layer that they are meant for.
        let code = unsafe {
            match (*unix).xOpen {
                Some(open) => open(unix, name, file, flags, out),
                None => ffi::SQLITE_CANTOPEN,
            }
        };
        if code != ffi::SQLITE_OK || flags & ffi::SQLITE_OPEN_WAL == 0 || name.is_null() {
            return code;
        }
        // SAFETY: the name of a file is a C string.
        let path = unsafe { CStr::from_ptr(name) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        // Without a second descriptor, the log is synced as ever.
        if let Ok(second) = File::open(path) {
            // SAFETY: the layer has opened the file, so it has methods, which live as long as the process.
            unsafe {
                let original = &*(*file).pMethods;
                let ours = ffi::sqlite3_io_methods { xSync: Some(sync), xClose: Some(close), ..*original };
                let methods = Methods { ours, original, file: second, is_created: AtomicBool::new(false) };
                (*file).pMethods = (&raw const *Box::leak(Box::new(methods))).cast();
            }
        }
        code
    }

    unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
        // SAFETY: this method is only in files that `open` has changed.
        let methods = unsafe { Methods::of(file) };
        // The first sync of a new file also syncs the folder with its name.
        if !methods.is_created.load(Ordering::Relaxed) {
            // SAFETY: as for `open`.
            let code = unsafe { methods.original.xSync.map_or(ffi::SQLITE_OK, |sync| sync(file, flags)) };
            methods.is_created.store(code == ffi::SQLITE_OK, Ordering::Relaxed);
            return code;
        }
        #[cfg(test)]
        tests::SYNCS.with(|syncs| syncs.set(syncs.get() + 1));
        if methods.file.sync_data().is_ok() { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_FSYNC }
    }

    unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
        // SAFETY: as for `sync`; SQLite closes a file once, and then forgets its methods.
        unsafe {
            let methods = Box::from_raw((*file).pMethods.cast::<Methods>().cast_mut());
            methods.original.xClose.map_or(ffi::SQLITE_OK, |close| close(file))
        }
    }

    #[cfg(test)]
    pub mod tests {
        use super::*;
        use crate::sqlite::door;
        use std::cell::Cell;

        thread_local! {
            pub static SYNCS: Cell<u32> = const { Cell::new(0) };
        }

        #[test]
        fn every_commit_but_the_first_syncs_bytes_only() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("store.db");
            for round in 0..2 {
                let connection = door::open_for_writing(&path).unwrap();
                let create = "CREATE TABLE IF NOT EXISTS t (n)";
                connection.execute_batch(create).unwrap();
                let before = SYNCS.get();
                for n in 0..5 {
                    connection.execute("INSERT INTO t VALUES (?1)", [n]).unwrap();
                }
                assert!(SYNCS.get() >= before + 4, "{} syncs in round {round}", SYNCS.get() - before);
                let rows: i64 = connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
                assert_eq!(rows, 5 * (round + 1));
            }
            assert!(library().layer.is_some());
        }
    }
}
