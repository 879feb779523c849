#include "core/text.hpp"
#include "topologies/importer.hpp"

namespace stepcast {
namespace {

/// Tables of `rocm-smi --showtopo` are recognised and refused: clusters have no xGMI links.
bool is_rocm_smi(const std::string& text) {
  return contains_any(text,
                      {"Weight between two GPUs", "Hops between two GPUs", "Link Type between two GPUs"});
}

Imported refuse(const std::vector<std::string>& paths, const ImportTexts& /*options*/) {
  fail_at(paths.front(), {}, kNoXgmi);
}

const Registration<Importer> kRocmSmi{importers(), "rocm-smi", {is_rocm_smi, refuse}, 20};

}  // namespace
}  // namespace stepcast
