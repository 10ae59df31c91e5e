//! Readers of the engine: scripts of projectors, and imports of any file into a store.

use crate::{stage, text_of, views};
use everturn_core::json::Raw;
use everturn_engine::{Everturn, Format, ImportOptions, script as projector};
use everturn_formats::jsonl::{Item, Reader};
use everturn_formats::transcript;
use everturn_views::projection::{Message, project};
use serde_json::json;
use std::cell::RefCell;
use std::sync::LazyLock;

/// A conversation that scripts project.
static MESSAGES: LazyLock<Vec<Message>> = LazyLock::new(|| {
    let talk = String::from_utf8(views::conversations().remove(0)).unwrap();
    transcript::messages(&Raw::new(talk).unwrap()).unwrap().0
});

/// A script: whatever it does, it ends within its limits, and an error is the script's.
pub fn script(bytes: &[u8]) {
    let source = text_of(bytes);
    let options = match projector::options(&json!({"policy": "custom", "projector": source})) {
        Ok(options) => options,
        Err(everturn_engine::Error::Internal(error)) => panic!("{}", error.text),
        Err(_) => return,
    };
    if let Err(everturn_engine::Error::Internal(error)) = project(&MESSAGES, None, &options) {
        panic!("{}", error.text);
    }
}

/// Inputs that share a store. Each has a tenant of its own in it.
const INPUTS_MAX: u64 = 500;

thread_local! {
    static STORE: RefCell<(Everturn, u64)> = RefCell::new((stage::store(), 0));
}

/// A file that is imported: what it becomes is a whole conversation, importing it again adds nothing, and a copy of the
/// conversation has the same events.
pub fn import(bytes: &[u8]) {
    STORE.with_borrow_mut(|(store, inputs)| {
        *inputs += 1;
        if *inputs > INPUTS_MAX {
            (*store, *inputs) = (stage::store(), 1);
        }
        import_into(store, *inputs, bytes);
    });
}

fn import_into(store: &Everturn, number: u64, bytes: &[u8]) {
    let tenant = store.tenant(&format!("here-{number}")).unwrap();
    let take = || {
        let options = ImportOptions { name: Some("/a/file.jsonl"), ..ImportOptions::default() };
        tenant.import_with(options, bytes, &mut |_| {})
    };
    let imported = match take() {
        Ok(imported) => imported,
        Err(everturn_engine::Error::Internal(error)) => panic!("{}: {}", error.code, error.text),
        Err(_) => return,
    };
    assert_eq!(take().unwrap().added, 0, "importing again added something");
    let elsewhere = store.tenant(&format!("there-{number}")).unwrap();
    for id in imported.linked.iter().chain([&imported.conversation.id]) {
        let chat = tenant.conversation(*id);
        chat.log().verify(None).unwrap();
        let exported = |tenant: &everturn_engine::Tenant| {
            let mut file = Vec::new();
            tenant.conversation(*id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
            file
        };
        let file = exported(&tenant);
        elsewhere.import(&*file, &mut |_| {}).unwrap();
        assert_eq!(events(&exported(&elsewhere)), events(&file));
    }
}

fn events(file: &[u8]) -> Vec<Item> {
    Reader::new(file).map(Result::unwrap).filter(|item| matches!(item, Item::Event { .. })).collect()
}
