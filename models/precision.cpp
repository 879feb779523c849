#include "models/precision.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

struct Dtype {
  double bytes;
  const char* of_device;
};

const std::map<std::string, Dtype>& dtypes() {
  static const std::map<std::string, Dtype> kDtypes{
      {"fp32", {4.0, "float32"}},     {"tf32", {4.0, "tf32"}},  {"bf16", {2.0, "bfloat16"}},
      {"fp16", {2.0, "float16"}},     {"fp8", {1.0, "float8"}}, {"int8", {1.0 + 4.0 / 256.0, "int8"}},
      {"bf16+fp32", {6.0, "float32"}}};
  return kDtypes;
}

const std::map<std::string, std::string Precision::*>& parts() {
  static const std::map<std::string, std::string Precision::*> kParts{
      {"compute", &Precision::compute},     {"parameters", &Precision::parameters},
      {"gradients", &Precision::gradients}, {"reduction", &Precision::reduction},
      {"master", &Precision::master},       {"optimizer", &Precision::optimizer},
      {"products", &Precision::products},   {"gather", &Precision::gather},
      {"scope", &Precision::scope}};
  return kParts;
}

Precision column(const std::string& dtype) {
  Precision precision;
  if (recipe_of(dtype) != nullptr) {
    precision = column("bf16");
    precision.products = dtype;
    return precision;
  }
  precision.compute = dtype;
  if (bytes_of(dtype) == 4.0) return precision;
  precision.parameters = precision.gradients = dtype;
  precision.master = "fp32";
  return precision;
}

/// \param part empty: a column of the table
std::string known_dtype(const std::string& part, const std::string& dtype) {
  std::vector<std::string> known{"bf16", "fp16", "fp32"};
  if (part == "products" || part == "gather") known.clear();
  if (part == "gather") known = {"fp8", "mxfp8", "nvfp4"};
  if (part == "scope") known = {"both", "linear", "experts"};
  if (part == "products" || part.empty())
    for (const Recipe& recipe : recipes()) known.push_back(recipe.name);
  if (part.empty() || part == "compute") known.emplace_back("tf32");  // a way to multiply, not to store
  if (part == "optimizer") known.emplace_back("int8");
  if (part == "gradients") known.emplace_back("bf16+fp32");
  if (part == "master" || part == "products" || part == "gather") known.emplace_back("none");
  if (std::ranges::find(known, dtype) != known.end()) return dtype;
  throw InputError("precision{}: {}", part.empty() ? "" : " of " + part,
                   unknown_name(part == "scope" ? part : "dtype", dtype, known));
}

}  // namespace

Precision Precision::parse(const std::string& text) {
  Precision result;
  const std::vector<std::string> words = split(text, ',');
  std::set<std::string> given;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos && &word == &words.front()) {
      result = column(known_dtype("", word));
      continue;
    }
    const std::string part = word.substr(0, equals);
    if (equals == std::string::npos || !parts().contains(part))
      throw InputError("precision '" + text + "': " + unknown_name("part", part, names_of(parts())));
    if (!given.insert(part).second) throw InputError("precision '{}': {} is set twice", text, part);
    result.*parts().at(part) = known_dtype(part, word.substr(equals + 1));
  }
  if (text.empty() || text.ends_with(',')) throw InputError("precision '" + text + "': a dtype is missing");
  if (result.parameters == "fp32" && result.master != "none")
    throw InputError("precision '{}': parameters in fp32 need no master copy; write fp32,compute={}", text,
                     result.compute);
  const Recipe* recipe = recipe_of(result.products);
  const bool gathers =
      recipe != nullptr && (result.gather == "fp8" ? recipe->bytes == 1.0 : recipe->name == result.gather);
  if (result.gather != "none" && !gathers)
    throw InputError(
        "precision '{}': gather={} does not fit products={}; valid are fp8 with fp8, fp8-delayed or "
        "fp8-current, mxfp8 with mxfp8, nvfp4 with nvfp4",
        text, result.gather, result.products);
  const bool own = recipe != nullptr && recipe->casts_each_time();
  if (result.scope != "both" && (!own || (result.scope == "experts" && result.gather != "none")))
    throw InputError(
        "precision '{}': scope={} needs a recipe of torchao (fp8, fp8-rowwise, fp8-rowwise-gw-hp, "
        "mxfp8-torchao); with scope=experts leave out gather",
        text, result.scope);
  return result;
}

std::string to_text(const Precision& precision) {
  std::string shortest;
  std::vector<std::string> columns = names_of(dtypes());
  std::erase_if(columns, [](const std::string& name) { return name == "int8" || name == "bf16+fp32"; });
  if (precision.products != "none") columns.push_back(precision.products);
  for (const std::string& dtype : columns) {
    const Precision whole = column(dtype);
    std::vector<std::string> words{dtype};
    for (const auto& [name, part] : parts())
      if (precision.*part != whole.*part) words.push_back(name + "=" + precision.*part);
    const std::string text = joined(words, ",");
    if (shortest.empty() || text.size() < shortest.size()) shortest = text;
  }
  return shortest;
}

double bytes_of(const std::string& dtype) { return dtype == "none" ? 0.0 : dtypes().at(dtype).bytes; }

std::string device_dtype(const std::string& dtype) { return dtypes().at(dtype).of_device; }

std::vector<std::string> device_dtypes() {
  return sorted_unique(
      transformed(dtypes(), [](const auto& one) { return std::string(one.second.of_device); }));
}

}  // namespace stepcast
