//! A file layer that records writes and syncs, and that can refuse to write.
//!
//! It wraps SQLite's own layer for Unix. A file is opened by that layer; then the four methods that change a
//! file are replaced by ours, which record the call and forward it. Files outside of a watched folder are left
//! alone. It also takes the name of that layer, so that the store wraps it as it wraps the real one: the syncs of
//! commits are those that a user's store makes.

use rusqlite::ffi;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};

/// A folder whose files are watched.
pub struct Disk {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: Vec<Step>,
    /// Number of syncs by a descriptor of the store's own.
    by_descriptor: usize,
    /// Bytes that may still be written, if limited.
    space: Option<u64>,
}

/// A recorded step, in order over all files of the folder.
#[derive(Clone)]
pub enum Step {
    Wrote {
        file: PathBuf,
        offset: usize,
        bytes: Vec<u8>,
    },
    Cut {
        file: PathBuf,
        size: usize,
    },
    Synced {
        file: PathBuf,
    },
    Deleted {
        file: PathBuf,
    },
    /// The store acknowledged everything up to its n-th commit.
    Acknowledged(usize),
}

struct Open {
    disk: Arc<Disk>,
    file: PathBuf,
    original: &'static ffi::sqlite3_io_methods,
}

static DISKS: Mutex<Vec<Arc<Disk>>> = Mutex::new(Vec::new());
static OPEN: LazyLock<Mutex<HashMap<usize, Open>>> = LazyLock::new(Mutex::default);
/// SQLite's own layer, as an address: it lives as long as the process.
static BELOW: LazyLock<usize> = LazyLock::new(|| {
    // SAFETY: SQLite is initialised by this call and hands out its default layer.
    unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) as usize }
});

impl Disk {
    /// Watches a folder. The path must be the real one, as SQLite sees it.
    pub fn watch(folder: &Path) -> Arc<Disk> {
        install();
        let disk = Arc::new(Disk { folder: folder.canonicalize().unwrap(), state: Mutex::default() });
        DISKS.lock().unwrap().push(disk.clone());
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Records that the store has answered. By then it has written the record of its head, bypassing this
    /// layer, and synced it only when it was created.
    pub fn acknowledge(&self, commit: usize) {
        let file = self.folder.join("store.db-head");
        let bytes = std::fs::read(&file).unwrap();
        let mut state = self.state();
        state.trace.push(Step::Wrote { file: file.clone(), offset: 0, bytes });
        if commit == 0 {
            state.trace.push(Step::Synced { file });
        }
        state.trace.push(Step::Acknowledged(commit));
    }

    /// All steps so far.
    pub fn trace(&self) -> Vec<Step> {
        self.state().trace.clone()
    }

    /// Number of syncs that the store made by a descriptor of its own.
    pub fn syncs_by_descriptor(&self) -> usize {
        self.state().by_descriptor
    }

    /// Number of bytes that may still be written; `None` for no limit.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.state().space = bytes;
    }

    fn of(path: &Path) -> Option<Arc<Disk>> {
        DISKS.lock().unwrap().iter().find(|disk| path.starts_with(&disk.folder)).cloned()
    }
}

/// Makes this layer SQLite's default, once for the process.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let below = *BELOW as *mut ffi::sqlite3_vfs;
        // SAFETY: the layer below is never freed; ours is a copy of it that is leaked, so neither is ours.
        unsafe {
            assert_eq!(ffi::sqlite3_vfs_unregister(below), ffi::SQLITE_OK);
            let ours = Box::leak(Box::new(*below));
            ours.pNext = std::ptr::null_mut();
            ours.xOpen = Some(open);
            ours.xDelete = Some(delete);
            assert_eq!(ffi::sqlite3_vfs_register(ours, 1), ffi::SQLITE_OK);
        }
    });
}

/// The table of methods that replaces `original`. There are only a few originals, so leaking one each is fine.
fn watched(original: &'static ffi::sqlite3_io_methods) -> &'static ffi::sqlite3_io_methods {
    static TABLES: LazyLock<Mutex<HashMap<usize, &'static ffi::sqlite3_io_methods>>> =
        LazyLock::new(Mutex::default);
    let mut tables = TABLES.lock().unwrap();
    tables.entry(std::ptr::from_ref(original) as usize).or_insert_with(|| {
        Box::leak(Box::new(ffi::sqlite3_io_methods {
            xClose: Some(close),
            xWrite: Some(write),
            xTruncate: Some(truncate),
            xSync: Some(sync),
            ..*original
        }))
    })
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let below = *BELOW as *mut ffi::sqlite3_vfs;
    // SAFETY: arguments are passed on as SQLite gave them; a name, where there is one, is a C string.
    unsafe {
        let code = (*below).xOpen.unwrap()(below, name, file, flags, out);
        if code == ffi::SQLITE_OK && !name.is_null() {
            let path = PathBuf::from(CStr::from_ptr(name).to_str().unwrap());
            if let Some(disk) = Disk::of(&path) {
                let original = &*(*file).pMethods;
                (*file).pMethods = watched(original);
                OPEN.lock().unwrap().insert(file as usize, Open { disk, file: path, original });
            }
        }
        code
    }
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    let below = *BELOW as *mut ffi::sqlite3_vfs;
    // SAFETY: as above.
    unsafe {
        let code = (*below).xDelete.unwrap()(below, name, sync);
        let file = PathBuf::from(CStr::from_ptr(name).to_str().unwrap());
        if let Some(disk) = Disk::of(&file).filter(|_| code == ffi::SQLITE_OK) {
            disk.state().trace.push(Step::Deleted { file });
        }
        code
    }
}

/// The record of an open file.
fn known(file: *mut ffi::sqlite3_file) -> (Arc<Disk>, PathBuf, &'static ffi::sqlite3_io_methods) {
    let open = OPEN.lock().unwrap();
    let known = &open[&(file as usize)];
    (known.disk.clone(), known.file.clone(), known.original)
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let known = OPEN.lock().unwrap().remove(&(file as usize)).unwrap();
    // SAFETY: the file was opened by the layer whose method this is.
    unsafe { known.original.xClose.unwrap()(file) }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    let (disk, path, original) = known(file);
    // SAFETY: SQLite hands `amount` readable bytes.
    let given = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), amount as usize) };
    {
        let mut state = disk.state();
        if let Some(left) = &mut state.space {
            match left.checked_sub(amount as u64) {
                Some(rest) => *left = rest,
                None => return ffi::SQLITE_FULL,
            }
        }
        state.trace.push(Step::Wrote { file: path, offset: offset as usize, bytes: given.to_vec() });
    }
    // SAFETY: as for `close`.
    unsafe { original.xWrite.unwrap()(file, bytes, amount, offset) }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    let (disk, path, original) = known(file);
    disk.state().trace.push(Step::Cut { file: path, size: size as usize });
    // SAFETY: as for `close`.
    unsafe { original.xTruncate.unwrap()(file, size) }
}

/// The store syncs its write-ahead log by a descriptor of its own. This function takes the place of the system's.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    let file = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap();
    if let Some(disk) = Disk::of(&file) {
        let mut state = disk.state();
        state.by_descriptor += 1;
        state.trace.push(Step::Synced { file });
    }
    0
}

/// Nothing here depends on the real disk, so the real sync, which is slow, is left out.
unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    let (disk, path, _) = known(file);
    disk.state().trace.push(Step::Synced { file: path });
    ffi::SQLITE_OK
}
