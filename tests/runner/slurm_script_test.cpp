#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace stepcast::slurm_script_test {

namespace {

/// Whether bash can parse a script, and what it prints when `srun` prints its words one per line.
struct Shell {
  explicit Shell(const std::string& script) {
    std::string name = (std::filesystem::temp_directory_path() / "stepcast-sbatch-XXXXXX").string();
    folder = ::mkdtemp(name.data());
    std::ofstream(folder / "job.sh") << script;
    std::ofstream(folder / "srun") << "#!/bin/bash\nprintf '%s\\n' \"$@\"\n";
    std::filesystem::permissions(folder / "srun", std::filesystem::perms::owner_all);
  }
  ~Shell() { std::filesystem::remove_all(folder); }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;
  [[nodiscard]] bool parses() const {
    return std::system(("bash -n " + (folder / "job.sh").string()).c_str()) == 0;
  }
  [[nodiscard]] std::string run() const {
    const std::string out = (folder / "out").string();
    const std::string line =
        "PATH=" + folder.string() + ":$PATH bash " + (folder / "job.sh").string() + " > " + out;
    REQUIRE(std::system(line.c_str()) == 0);
    std::ifstream in(out);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::filesystem::path folder;
};

/// What `calibrate` with these words prints.
std::string printed_script(const std::string& words) {
  const Shell shell("");
  const std::string out = (shell.folder / "printed.sh").string();
  const std::string runner = std::string(STEPCAST_BINARY_DIR) + "/stepcast-runner";
  REQUIRE(std::system((runner + " calibrate " + words + " > " + out).c_str()) == 0);
  std::ifstream in(out);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("the job script contains every word as it was typed, without options of the job itself") {
  const Shell shell(
      printed_script(R"(--nodes 4 --nproc=2 --print-sbatch --max 16MiB -o "my cluster's \$HOME.json")"));
  REQUIRE(shell.parses());
  CHECK_THAT(shell.run(),
             Catch::EndsWith("stepcast\ncalibrate\n--max\n16MiB\n-o\nmy cluster's $HOME.json\n"));
}

TEST_CASE("calibrate --print-sbatch prints the script and starts nothing") {
  const std::string script =
      printed_script("--print-sbatch --nodes 3 --ntasks-per-node 2 --max 4MiB --timeout 90s");
  REQUIRE(Shell(script).parses());
  CHECK_THAT(script, Catch::StartsWith("#!/bin/bash\n") && Catch::Contains("#SBATCH --nodes=3\n") &&
                         Catch::Contains("#SBATCH --ntasks-per-node=2\n") && Catch::Contains("--mpi=none"));
  CHECK_THAT(script,
             Catch::Contains("stepcast calibrate --max 4MiB --timeout 90s -o cluster.calibration.json"));
  CHECK_THAT(script, !Catch::Contains("print-sbatch"));
}

}  // namespace stepcast::slurm_script_test
