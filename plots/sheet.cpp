#include "plots/sheet.hpp"

#include <algorithm>
#include <array>
#include <boost/algorithm/string/replace.hpp>
#include <cmath>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/text.hpp"

namespace stepcast::style {
namespace {

/// Points of a character of the title.
constexpr double kTitleCharacter = 10.3;
constexpr int kSmallestWidth = 640;
/// Points of the title and two rows of legend; of a further row; of a note.
constexpr int kHead = 76, kLegendRow = 14, kNote = 15;

/// As many as have room, each as wide as the longest.
int legend_columns(const std::vector<Entry>& legend, int width) {
  constexpr double kCharacter = 7.7, kSample = 46.0;
  const auto longest = largest_of(legend, [](const Entry& entry) { return characters_of(entry.title); });
  const double column = kSample + kCharacter * static_cast<double>(longest);
  return std::max(1, static_cast<int>(width / column));
}

int legend_height(const std::vector<Entry>& legend, int width) {
  const int columns = legend_columns(legend, width);
  const int rows = (static_cast<int>(legend.size()) + columns - 1) / columns;
  return kHead + kLegendRow * std::max(0, rows - 2);
}

std::string margins(double left, double right, double top, double bottom) {
  return fill(
      "set lmargin at screen {}\nset rmargin at screen {}\nset tmargin at screen {}\nset bmargin at screen "
      "{}\n",
      {left, right, top, bottom});
}

std::vector<double> multiples(const std::vector<double>& digits, double low, double high) {
  std::vector<double> values;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int power = first; power <= last; ++power)
    for (const double digit : digits) {
      const double value = digit * std::pow(10.0, power);
      if (value >= low && value <= high) values.push_back(value);
    }
  return values;
}

/// Text without its middle, because settings of a model often differ at their end.
std::string without_middle(const std::string& text, std::size_t characters) {
  if (characters_of(text) <= characters) return text;
  std::size_t end = text.size();
  for (std::size_t count = 0; count < characters / 2;)
    if (starts_character(text[--end])) ++count;
  return shortened(text, characters - characters / 2) + text.substr(end);
}

/// `'text'`, or a cell if it has several lines.
std::string quote_lines(const std::string& text) {
  return text.find('\n') == std::string::npos ? quote(text) : cell(text);
}

/// In one line of font 11, or where that is too long in two of font 9, the second from the first ", " on,
/// shortened to fit.
std::string fitting_title(const std::string& title, double width) {
  constexpr double kCharacter = 8.2, kSmallCharacter = 6.9;
  const auto fits = [&](double character) { return static_cast<std::size_t>(width / character); };
  const std::size_t line = title.find('\n'), comma = title.find(", ");
  if (line == std::string::npos && characters_of(title) <= fits(kCharacter)) return title;
  if (line == std::string::npos && comma == std::string::npos) return without_middle(title, fits(kCharacter));
  const std::size_t cut = line == std::string::npos ? comma : line, skip = line == std::string::npos ? 2 : 1;
  return without_middle(title.substr(0, cut), fits(kSmallCharacter)) + "\n" +
         without_middle(title.substr(cut + skip), fits(kSmallCharacter));
}

/// The title, the notes and the legend. The legend is a plot of its own without axes, because a key inside a
/// panel would be as narrow as the panel. \param legend_points height of title and legend
std::string head_script(const Sheet& sheet, double w, double h, int legend_points) {
  constexpr double kMargin = 10.0;
  const std::string title = shortened(sheet.title, static_cast<std::size_t>((w - kMargin) / kTitleCharacter));
  const double title_at =
      std::clamp(w - kTitleCharacter * static_cast<double>(characters_of(title)), kMargin, 1.0 * sheet.left);
  std::string script =
      fill("set label 1 {q} at screen {},{} left font ',14'\n", {title, title_at / w, 1.0 - 20.0 / h});
  for (std::size_t i = 0; i < sheet.notes.size(); ++i)
    script += fill("set label {} {q} at screen {},{} left font ',9'\n",
                   {10 + i, sheet.notes[i], sheet.left / w,
                    1.0 - (legend_points + kNote * static_cast<double>(i + 1) - 12.0) / h});
  script +=
      margins(sheet.left / w, 0.995, 1.0 - 32.0 / h, 1.0 - legend_points / h) +
      fill("set key inside left top horizontal maxcols {} samplen 1.5 spacing 1.0 Left reverse font ',9'\n",
           {legend_columns(sheet.legend, static_cast<int>(w) - sheet.left)}) +
      "unset border\nunset tics\nunset grid\nplot [0:1][0:1] ";
  for (const Entry& entry : sheet.legend)
    script += fill(&entry == &sheet.legend.front() ? "NaN {} title {q}" : ", NaN {} title {q}",
                   {entry.look, entry.title});
  return fmt::format(
      "{}\nunset label\nunset key\nset border 3\nset tics out scale 0.5 font ',9' textcolor rgb "
      "'#333333'\nset xtics nomirror\nset ytics nomirror\nset grid ytics\n{}",
      script, sheet.setup);
}

}  // namespace

std::string_view series_colour(std::size_t i) {
  constexpr std::array<std::string_view, 10> colours = {"#332288", "#CC6677", "#117733", "#DDCC77",
                                                        "#AA4499", "#88CCEE", "#882255", "#44AA99",
                                                        "#999933", "#000000"};
  return colours[i % colours.size()];
}

Rgb Rgb::mixed(const Rgb& other, double share) const {
  return {std::lerp(red, other.red, share), std::lerp(green, other.green, share),
          std::lerp(blue, other.blue, share)};
}

int Rgb::number() const {
  const auto part = [](double value) { return static_cast<int>(std::lround(value)); };
  return 65536 * part(red) + 256 * part(green) + part(blue);
}

Rgb rgb(std::string_view colour) {
  const int all = std::stoi(std::string(colour.substr(1)), nullptr, 16);
  return {1.0 * (all >> 16), 1.0 * (all >> 8 & 255), 1.0 * (all & 255)};
}

std::string quote(std::string_view text) {
  return "'" + boost::replace_all_copy(std::string(text), "'", "''") + "'";
}

std::string cell(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '\n' ? "\\n" : std::string(1, c == '"' ? '\'' : c);
  return quoted + "\"";
}

std::string number(double value) {
  return std::isnan(value) ? "NaN" : fmt::format("{:.9g}", value);  // as gnuplot spells it
}

std::string fill(std::string_view pattern, std::initializer_list<Field> values) {
  std::string text;
  const auto* next = values.begin();
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const bool plain = pattern.substr(at, 2) == "{}";
    if (!plain && pattern.substr(at, 3) != "{q}") {
      text += pattern[at];
      continue;
    }
    text += plain ? next->text : quote(next->text);
    at += plain ? 1 : 2;
    ++next;
  }
  return text;
}

std::string row(std::initializer_list<Field> values) {
  return joined(transformed(values, &Field::text), " ");
}

std::string tics(const std::vector<Tic>& places) {
  const auto text_of = [](const Tic& tic) { return fill("{} {}", {quote_lines(tic.label), tic.at}); };
  return "(" + joined(transformed(places, text_of)) + ")";
}

std::string log_tics(double low, double high) {
  constexpr std::size_t kFewest = 4;
  const std::vector<std::vector<double>> steps = {{1.0, 2.0, 5.0},
                                                  {1.0, 2.0, 3.0, 5.0},
                                                  {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0},
                                                  {1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}};
  std::vector<double> values;
  for (const std::vector<double>& digits : steps)
    if (values.size() < kFewest) values = multiples(digits, low, high);
  return number_tics(values);
}

std::string shortened(const std::string& text, std::size_t characters) {
  if (characters_of(text) <= characters) return text;
  std::size_t at = 0;
  for (std::size_t count = 0; count < characters; ++at)
    if (starts_character(text[at]) && ++count == characters) break;
  return text.substr(0, at) + "\u2026";
}

PlaceTics place_tics(const std::vector<std::string>& places, double room) {
  constexpr double kCharacter = 6.0;  // points
  constexpr double kSine = 0.5, kCosine = 0.87;
  constexpr std::size_t kLongest = 32;
  constexpr int kLine = 12;
  const auto most = static_cast<std::size_t>(std::max(3.0, room / kCharacter - 1.0));
  std::vector<Tic> all;
  std::size_t longest = 0;
  bool fits = true, two_lines = false;
  for (const std::string& place : places) {
    std::string label = shortened(place, kLongest);
    longest = std::max(longest, label.size());
    if (label.size() > most) {  // break at the blank that is nearest to the middle
      std::size_t best = std::string::npos;
      const auto distance = [&](std::size_t at) {
        return at > label.size() / 2 ? at - label.size() / 2 : label.size() / 2 - at;
      };
      for (std::size_t at = label.find(' '); at != std::string::npos; at = label.find(' ', at + 1))
        if (best == std::string::npos || distance(at) < distance(best)) best = at;
      fits = fits && best != std::string::npos && std::max(best, label.size() - best - 1) <= most;
      if (best != std::string::npos) label[best] = '\n';
      two_lines = true;
    }
    all.push_back({static_cast<double>(all.size()), label});
  }
  if (fits)
    return {fill("set xtics norotate {}\nset xlabel offset 0,{}\n", {tics(all), two_lines ? "-0.6" : "0.4"}),
            two_lines ? kLine : 0, 0};
  for (Tic& tic : all) std::ranges::replace(tic.label, '\n', ' ');
  const double longest_points = kCharacter * static_cast<double>(longest);
  return {"set xtics rotate by -30 left " + tics(all) + "\nset xlabel offset 0,0.4\n",
          static_cast<int>(kSine * longest_points) + 2 * kLine,
          static_cast<int>(std::max(
              0.0, kCosine * kCharacter * static_cast<double>(all.back().label.size()) - 0.5 * room))};
}

std::size_t Panel::block(std::string_view columns, const std::vector<std::string>& rows) {
  std::string text = "# " + std::string(columns) + "\n";
  for (const std::string& row : rows) text += row + "\n";
  if (rows.empty()) text += "NaN NaN NaN NaN NaN NaN NaN\n";
  blocks.push_back(text + "\n\n");
  return blocks.size() - 1;
}

void Panel::draw_block(std::string_view columns, const std::vector<std::string>& rows, std::string_view how) {
  if (!rows.empty()) draw(block(columns, rows), how);
}

void Panel::draw(std::size_t block, std::string_view how) {
  plots.push_back({static_cast<std::ptrdiff_t>(block), std::string(how)});
}
void Panel::draw(std::string_view function) { plots.push_back({-1, std::string(function)}); }

void Sheet::make_room(int below, int beside) {
  bottom += below;
  height += below;
  right += beside;
  width += beside;
}

Drawing Sheet::drawing() const {
  const std::size_t count = std::max<std::size_t>(1, panels.size());
  const auto across = static_cast<int>(std::min(columns, count));
  const int whole_width = std::max(kSmallestWidth, across * width);
  const int head_only = legend_height(legend, whole_width - left);
  const int head = head_only + kNote * static_cast<int>(notes.size());
  int whole_height = head + foot;
  for (std::size_t i = 0; i < panels.size(); i += static_cast<std::size_t>(across))
    whole_height += panels[i].height > 0 ? panels[i].height : height;
  const double w = whole_width, h = whole_height;

  Drawing result{"", "set multiplot\n" + head_script(*this, w, h, head_only), whole_width, whole_height};
  std::string& script = result.script;
  double y = h - head;
  std::size_t first_block = 0;
  for (const auto [i, panel] : enumerated(panels)) {
    const auto column = static_cast<int>(i % static_cast<std::size_t>(across));
    const double panel_width = w / across, x = column * panel_width;
    const double panel_height = panel.height > 0 ? panel.height : height;
    // The title is above the middle of the axes.
    const std::string panel_title = fitting_title(panel.title, panel_width - std::abs(left - right));
    script += margins((x + left) / w, (x + panel_width - right) / w, (y - top) / h,
                      (y - panel_height + bottom) / h) +
              fill("set title {} offset 0,-0.4 font ',{}'\n",
                   {quote_lines(panel_title), panel_title.find('\n') == std::string::npos ? 11 : 9}) +
              panel.axes + "plot ";
    if (panel.plots.empty()) script += "NaN";
    for (const Panel::Plot& plot : panel.plots) {
      if (&plot != &panel.plots.front()) script += ", ";
      if (plot.block >= 0)
        script += fill("data index {} ", {first_block + static_cast<std::size_t>(plot.block)});
      script += plot.how;
    }
    script += "\n";
    for (const std::string& block : panel.blocks) result.data += block;
    first_block += panel.blocks.size();
    if (column == across - 1) y -= panel_height;
  }
  script += "unset multiplot\n";
  return result;
}

void draw_boxes(Panel& panel, const std::string& name, const std::vector<Box>& boxes,
                const std::string& look) {
  std::vector<std::string> rows;
  for (const Box& box : boxes)
    rows.push_back(row({0.5 * (box.x_low + box.x_high), 0.5 * (box.y_low + box.y_high), box.x_low, box.x_high,
                        box.y_low, box.y_high}) +
                   (box.more.empty() ? "" : " " + box.more));
  panel.draw_block(name + ": x y x_low x_high y_low y_high", rows,
                   (look.find("variable") == std::string::npos ? "using 1:2:3:4:5:6 with boxxyerror "
                                                               : "using 1:2:3:4:5:6:7 with boxxyerror ") +
                       look);
}

void draw_texts(Panel& panel, const std::vector<Text>& texts, const std::string& look) {
  const auto rows = transformed(texts, [](const Text& one) {
    return row({one.x, one.y, cell(one.text)}) + (one.more.empty() ? "" : " " + one.more);
  });
  panel.draw_block("texts: x y text", rows,
                   (look.find("variable") == std::string::npos ? "using 1:2:3 with labels "
                                                               : "using 1:2:3:4 with labels ") +
                       look);
}

double draw_stack(Panel& panel, const std::vector<StackedBar>& bars, const std::vector<Part>& parts,
                  const std::string& label_look) {
  std::vector<double> tops(bars.size(), 0.0);
  for (const Part& part : parts) {
    std::vector<Box> boxes;
    for (std::size_t i = 0; i < bars.size(); ++i) {
      const double low = tops[i];
      tops[i] += part.heights[i];
      boxes.push_back({bars[i].x - bars[i].half_width, bars[i].x + bars[i].half_width, low, tops[i]});
    }
    draw_boxes(panel, std::string(part.name), boxes, fill("fs solid 1.0 noborder fc rgb {q}", {part.colour}));
  }
  std::vector<Text> labels;
  for (std::size_t i = 0; i < bars.size(); ++i) labels.push_back({bars[i].x, tops[i], bars[i].label});
  draw_texts(panel, labels, "font ',8' " + label_look);
  return tops.empty() ? 0.0 : *std::ranges::max_element(tops);
}

std::vector<Entry> stack_legend(const std::vector<Part>& parts) {
  return transformed(parts, [](const Part& part) {
    return Entry{fill("with boxes fs solid 1.0 noborder fc rgb {q}", {part.colour}), std::string(part.name)};
  });
}

}  // namespace stepcast::style
