#include "core/text.hpp"
#include "topologies/importer.hpp"

namespace stepcast {
namespace {

/// Tables of `rocm-smi --showtopo` are recognised and refused: clusters have no xGMI links.
bool is_rocm_smi(const std::string& text) {
  return contains_any(text,
                      {"Weight between two GPUs", "Hops between two GPUs", "Link Type between two GPUs"});
}

const Registration<Importer> kRocmSmi{
    importers(),
    {.name = "rocm-smi",
     .description = "the tables of 'rocm-smi --showtopo'",
     .value = {.example = "topo.txt",
               .recognises = is_rocm_smi,
               .read = [](const std::vector<std::string>& paths, const ImportTexts&) -> Imported {
                 fail_at(paths.front(), {}, kNoXgmi);
               }},
     .order = 20}};

}  // namespace
}  // namespace stepcast
