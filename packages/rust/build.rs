//! Builds libsmelt by the script of its source package: in smelt's repository, or where SMELT_SOURCE says. With
//! SMELT_PREFIX, an installed library is linked instead.
use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=SMELT_PREFIX");
    println!("cargo:rerun-if-env-changed=SMELT_SOURCE");
    let prefix = match env::var_os("SMELT_PREFIX") {
        Some(prefix) => PathBuf::from(prefix),
        None => {
            let source = env::var_os("SMELT_SOURCE").map_or_else(|| PathBuf::from("../libsmelt"), PathBuf::from);
            let prefix = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("smelt");
            let script = source.join("build.sh");
            let status = Command::new("sh").arg(&script).arg(&prefix).status();
            assert!(status.is_ok_and(|status| status.success()), "{} failed", script.display());
            println!("cargo:rerun-if-changed={}", script.display());
            prefix
        }
    };
    println!("cargo:rustc-link-search=native={}", prefix.join("lib").display());
    println!("cargo:rustc-link-lib=static=smelt");
    if cfg!(target_os = "linux") {
        for library in ["m", "pthread", "dl"] {
            println!("cargo:rustc-link-lib={library}");
        }
    }
}
