//! Schemathesis reads the description of the API, sends thousands of requests that fit it or nearly do, and
//! checks every answer: no server errors, and nothing that the description does not cover.

use crate::stage::Stage;
use crate::{python, succeeded};
use std::path::Path;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_answered_that_the_description_does_not_say() {
    let stage = Stage::new().await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = python(Path::new("-m"));
    command.current_dir(&folder).args(["schemathesis.cli", "run", &format!("{}/openapi.json", stage.url)]);
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
                  response_headers_conformance,response_schema_conformance";
    command.args([
        "--checks",
        checks,
        "--max-examples",
        "20",
        "--seed",
        "1",
        "--generation-database",
        "none",
    ]);
    let said = succeeded(command).await;
    let selected = said.lines().find_map(|line| line.trim().strip_prefix("Selected: ")?.split_once('/'));
    let (asked, all) = selected.unwrap_or_else(|| panic!("no number of operations:\n{said}"));
    assert_eq!(asked, all, "every operation is selected:\n{said}");
    assert!(said.contains(&format!("Tested: {all}")), "every operation is asked:\n{said}");
    stage.stop().await;
}
