#include <gnuplot-iostream.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "core/file.hpp"
#include "core/program.hpp"
#include "plots/figure.hpp"
#include "plots/sheet.hpp"

namespace stepcast {
namespace fs = std::filesystem;
namespace {

constexpr const char* kGnuplot = "gnuplot";

constexpr const char* kInTerminal = ".txt";

fs::path with_extension(fs::path path, const char* extension) { return path.replace_extension(extension); }

double terminal_columns() {
  constexpr double kUsual = 100.0;
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

std::string terminal(const fs::path& figure, const Drawing& drawing) {
  const int width = drawing.width, height = drawing.height;  // points
  if (figure.extension() == ".svg")
    return style::fill("set terminal svg size {},{} font 'DejaVu Sans,11' noenhanced background '#ffffff'\n",
                       {width, height});
  if (figure.extension() == ".pdf")  // in inches
    return style::fill(
        "set terminal pdfcairo size {},{} font 'DejaVu Sans,11' fontscale 1 linewidth 1 noenhanced\n",
        {width / 72.0, height / 72.0});
  if (figure.extension() == kInTerminal) {
    constexpr double kPointsPerCharacter = 8.0;
    const double columns = std::clamp(terminal_columns(), 60.0, 400.0);
    const double lines = std::max(0.5 * columns * height / width, height / (2.5 * kPointsPerCharacter));
    return style::fill("set terminal dumb noenhanced mono size {},{}\n",
                       {static_cast<int>(columns), static_cast<int>(lines)});
  }
  // 1.5 pixels per point: sharp on paper and on a screen.
  return style::fill(
      "set terminal pngcairo size {},{} font 'DejaVu Sans,11' fontscale 1.5 linewidth 1.5 noenhanced\n",
      {width * 3 / 2, height * 3 / 2});
}

/// `data` and `output` can be set from outside: the program draws under temporary names.
std::string preamble(const Drawing& drawing, const fs::path& figure, const std::string& caption) {
  const auto name = [&](const char* extension) {
    return (*extension == 0 ? figure : with_extension(figure, extension)).filename().string();
  };
  return style::fill(
      "# Draw again with: gnuplot {}\nif (!exists('data')) data = {q}\n"
      "if (!exists('output')) output = {q}\nset encoding utf8\n{}"
      "set output output\nset border 3 lc rgb '#666666'\n"
      "set grid ytics lc rgb '#dddddd' lt 1 lw 0.7\nset style fill solid 1.0 noborder\n"
      "set label 2 {q} at screen 0.995,{} right font ',8' textcolor rgb '#888888'\n",
      {name(".gp"), name(".dat"), name(""), terminal(figure, drawing), caption, 8.0 / drawing.height});
}

/// gnuplot-iostream does not report whether writing or drawing worked, so both are checked here.
void write_script(const fs::path& path, const std::string& text) {
  {
    Gnuplot script(">" + path.string());
    script << text;
  }
  if (read_file(path) != text) throw RunError("{}: could not be written; is the disk full?", path.string());
}

void draw_with_gnuplot(const fs::path& script, const fs::path& data, const fs::path& output) {
  const auto assign = [](const char* variable, const fs::path& path) {
    return std::string(variable) + " = " + style::quote(path.filename().string());
  };
  const fs::path folder = script.has_parent_path() ? script.parent_path() : fs::path(".");
  const ProgramOutput result = run_program_file({find_program(kGnuplot), "-e", assign("data", data), "-e",
                                                 assign("output", output), script.filename().string()},
                                                folder.string());
  std::error_code missing;
  const auto size = fs::file_size(output, missing);
  if (result.exit_code == 0 && !missing && size > 0) return;
  throw RunError("gnuplot could not draw the figure: {}", result.standard_error.empty()
                                                              ? fmt::format("exit code {}", result.exit_code)
                                                              : result.standard_error);
}

void require_gnuplot() {
  if (find_program(kGnuplot).empty())
    throw CapabilityError("gnuplot is not installed or not in PATH; figures need it (Debian: gnuplot-nox)");
}

/// All three files appear, or none.
void draw_files(const Drawing& drawing, const fs::path& figure, const std::string& caption) {
  const std::string suffix = ".part" + std::to_string(::getpid());
  const fs::path data_path = with_extension(figure, ".dat"), script_path = with_extension(figure, ".gp");
  const TemporaryFile data(data_path.string() + suffix), script(script_path.string() + suffix);
  const TemporaryFile output(figure.string() + suffix);
  write_file(data.path(), drawing.data, true);
  write_script(script.path(), preamble(drawing, figure, caption) + drawing.script);
  draw_with_gnuplot(script.path(), data.path(), output.path());
  for (const auto& [file, target] :
       {std::pair(&data, data_path), {&script, script_path}, {&output, figure}}) {
    std::error_code problem;
    fs::rename(file->path(), target, problem);
    if (problem) throw RunError("{}: could not be written: {}", target.string(), problem.message());
  }
}

}  // namespace

Registry<Figure>& figures() {
  static Registry<Figure> registry("figure");
  return registry;
}

void check_renderable(const fs::path& figure, bool force) {
  const std::string extension = figure.extension().string();
  if (extension != ".svg" && extension != ".png" && extension != ".pdf")
    throw UsageError("-o: '{}' must end in .svg, .png or .pdf", figure.string());
  require_gnuplot();
  for (const char* other : {".gp", ".dat"}) check_writable(with_extension(figure, other), force);
  check_writable(figure, force);
}

void render(const Drawing& drawing, const fs::path& figure, const std::string& caption, bool force) {
  check_renderable(figure, force);
  draw_files(drawing, figure, caption);
}

std::string render_text(const Drawing& drawing, const std::string& caption, bool as_svg) {
  require_gnuplot();
  const fs::path figure = fs::temp_directory_path() /
                          ("stepcast-figure-" + std::to_string(::getpid()) + (as_svg ? ".svg" : kInTerminal));
  const TemporaryFile drawn(figure.string());
  const TemporaryFile script(with_extension(figure, ".gp").string());
  const TemporaryFile data(with_extension(figure, ".dat").string());
  draw_files(drawing, figure, caption);
  return read_file(figure);
}

}  // namespace stepcast
