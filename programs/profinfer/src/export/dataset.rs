//! `profinfer export --parquet`: adds runs to a data set. A run's files take their names when all of them are written,
//! and no other run's file is touched.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};

use super::warn;
use crate::reading::{open, with_bar_of};
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Usage};
use cli::failure::one_line;
use cli::output::{OutputFile, OutputName, OutputRules, Overwrite, mode, whole};
use dataset::{FILE_END, Run, SCHEMA_FILE, TABLES, Table, check_schema, partition, schema_file};
use render::table::clean;
use render::units::{bytes, count};

/// Name of the files that have a schema and no rows: a table that no run has filled can be queried, too.
const EMPTY: &str = "empty";

/// Adds the given traces to the data set in `dir`.
pub fn run(args: &Args, dir: &Path) -> anyhow::Result<ExitCode> {
    let files = args.needed_arguments(super::TRACES)?;
    if files.iter().filter(|f| *f == "-").count() > 1 {
        return Err(Usage::new("standard input can be used for one trace only").into());
    }
    let set = DataSet { dir, mode: args.needed("mode", mode)? };
    set.check()?;
    let mut left_out = 0;
    for (at, file) in files.iter().enumerate() {
        match set.add(file, (at + 1, files.len())) {
            Ok(added) => said(file, &added)?,
            // What is wrong with a trace says nothing about the others; what is wrong with the data set does.
            Err(Failure::Trace(e)) if files.len() > 1 => {
                warn(&one_line(&e))?;
                left_out += 1;
            }
            Err(Failure::Trace(e) | Failure::Set(e)) => return Err(e),
        }
    }
    if left_out > 0 {
        bail!("{left_out} of {} were left out: see above", count(files.len() as u64, "trace"));
    }
    Ok(ExitCode::SUCCESS)
}

/// A line about an added run.
fn said(file: &OsStr, added: &Added) -> io::Result<()> {
    let (file, rows) = (clean(&file.to_string_lossy()), count(added.rows, "row"));
    let size = bytes(added.bytes as f64);
    let files = count(added.files, "table");
    writeln!(io::stdout(), "run {} of {file}: {rows} in {files}, {size}", added.run)
}

/// What could not be used.
enum Failure {
    Trace(anyhow::Error),
    Set(anyhow::Error),
}

/// What was written of a run.
struct Added {
    run: String,
    rows: u64,
    files: u64,
    bytes: u64,
}

struct DataSet<'d> {
    dir: &'d Path,
    /// Permissions of new files.
    mode: u32,
}

impl DataSet<'_> {
    /// Fails if there is something else in the directory, or tables of another version.
    fn check(&self) -> anyhow::Result<()> {
        let cannot = || format!("cannot add to {}", self.dir.display());
        let mut found = self.schema().with_context(cannot)?;
        if found.is_none() && self.others().with_context(cannot)? {
            // Another profinfer may have begun the data set meanwhile: it writes this file first.
            found = self.schema().with_context(cannot)?;
            if found.is_none() {
                bail!(
                    "{} has other files and is no data set: give a new or an empty directory",
                    self.dir.display()
                );
            }
        }
        found
            .map_or(Ok(()), |text| check_schema(&text))
            .with_context(cannot)
            .context("nothing was written; give another directory with --parquet")
    }

    /// What describes the data set, if it is there.
    fn schema(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(self.dir.join(SCHEMA_FILE)) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether the directory has files, other than what another profinfer is just writing.
    fn others(&self) -> io::Result<bool> {
        let hidden = |name: OsString| name.as_encoded_bytes().starts_with(b".");
        match fs::read_dir(self.dir) {
            Ok(mut all) => Ok(all.any(|entry| entry.is_ok_and(|entry| !hidden(entry.file_name())))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn add(&self, file: &OsStr, (at, of): (usize, usize)) -> Result<Added, Failure> {
        let path = Path::new(file);
        let trace = open(path, "export").map_err(Failure::Trace)?;
        let name = path.file_name().filter(|name| *name != "-").map(|name| clean(&name.to_string_lossy()));
        let progress = LoadProgress::default();
        progress.total.store(trace.size().saturating_mul(dataset::PASSES), Ordering::Relaxed);
        let what = if of > 1 { format!("exporting {at} of {of}") } else { "exporting".into() };
        with_bar_of(&progress, &what, || {
            let run = Run::read(&trace, name, &progress);
            for damage in run.loaded.damage.iter().take(3) {
                warn(&format!("{}: {damage}", path.display())).map_err(|e| Failure::Set(e.into()))?;
            }
            if run.line.calls.is_empty() && run.loaded.runs.is_empty() {
                let why =
                    anyhow::anyhow!("cannot export {}: it has no engine call, graph or op", path.display());
                return Err(Failure::Trace(why));
            }
            self.prepare().and_then(|()| self.write(&run)).map_err(Failure::Set)
        })
    }

    /// Creates the directory, the file that describes it and the files without rows, as far as they are missing.
    fn prepare(&self) -> anyhow::Result<()> {
        let cannot = || format!("cannot write to {}", self.dir.display());
        fs::create_dir_all(self.dir).with_context(cannot)?;
        let schema = self.dir.join(SCHEMA_FILE);
        if !schema.exists() {
            let rules = OutputRules::new(Overwrite::Whole, self.mode);
            whole(&schema, rules, |()| true, |out| out.write_all(schema_file().as_bytes()))?;
        }
        for table in TABLES {
            let path = self.place(table, None, EMPTY);
            if !path.exists() {
                let out = self.create(&path)?;
                table.write(None, out.file.clone_file()?).with_context(cannot)?;
                out.settle()?;
            }
        }
        Ok(())
    }

    /// Writes all tables of a run under temporary names, and then gives them theirs.
    fn write(&self, run: &Run<'_, '_>) -> anyhow::Result<Added> {
        let mut added = Added { run: run.id().to_owned(), rows: 0, files: 0, bytes: 0 };
        let mut pending = Vec::new();
        // The table of runs comes last.
        for table in TABLES.iter().rev() {
            let out = self.create(&self.place(table, Some(run), run.id()))?;
            let path = out.path.display().to_string();
            let written = table
                .write(Some(run), out.file.clone_file()?)
                .with_context(|| format!("cannot write {path}"))?;
            // A run without rows for a table has no file there.
            if written.rows > 0 {
                added.rows += written.rows;
                added.bytes += written.bytes;
                added.files += 1;
                pending.push(out);
            }
        }
        pending.into_iter().try_for_each(Pending::settle)?;
        Ok(added)
    }

    fn place(&self, table: &Table, run: Option<&Run<'_, '_>>, name: &str) -> PathBuf {
        let mut file = OsString::from(name);
        file.push(FILE_END);
        self.dir.join(table.name).join(partition(run)).join(file)
    }

    fn create(&self, path: &Path) -> anyhow::Result<Pending> {
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).with_context(|| format!("cannot write to {}", above.display()))?;
        }
        let file = OutputFile::create(path, OutputRules::new(Overwrite::Whole, self.mode).hint(""))?;
        let name = file.name();
        Ok(Pending { file, name, path: path.to_owned() })
    }
}

/// A file under its temporary name, which is removed unless it is settled.
struct Pending {
    file: OutputFile,
    name: Option<Rc<OutputName>>,
    path: PathBuf,
}

impl Pending {
    fn settle(mut self) -> anyhow::Result<()> {
        match &self.name {
            Some(name) => name.settle()?,
            None => bail!("{} is not a regular file: give another directory", self.path.display()),
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            name.remove();
            // A directory that was created for it is empty again; others stay.
            for above in self.path.ancestors().skip(1).take(2) {
                if fs::remove_dir(above).is_err() {
                    break;
                }
            }
        }
    }
}
