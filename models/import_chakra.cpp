#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/chakra.hpp"

/// Recognises execution traces: Chakra's, which `predict --model` reads, and PyTorch's, which have no times.
namespace stepcast {
namespace {

bool is_host_trace(const std::string& head) {
  return head.find("[pytorch|profiler|execution_") != std::string::npos;
}

Imported import_chakra(const std::vector<std::string>& paths, const ImportTexts&) {
  const std::string& path = paths.front();
  if (is_host_trace(file_head(path)))
    throw InputError(
        "{}: is an execution trace of PyTorch, which has operations without times; profile with "
        "torch.profiler, or link it with such a profile by chakra_trace_link and chakra_converter",
        path);
  std::size_t computing = 0, messages = 0;
  double time = 0.0, bytes = 0.0;
  for (const ChakraNode& node : in_order(read_chakra(read_file(path), path), path)) {
    if (computes(node)) ++computing, time += node.duration_s;
    messages += node.numbers.count("comm_size");
    bytes += static_cast<double>(value_or(node.numbers, "comm_size", 0));
  }
  return {.understood = {fmt::format("one rank: {} of {}, {} of {}", counted(computing, "computing node"),
                                     to_text(Seconds(time)), counted(messages, "message"),
                                     to_text(Bytes(bytes)))},
          .obstacles = {fmt::format(
              "'stepcast predict --model {}' replays it with the traces of the other ranks", path)}};
}

bool is_execution_trace(const std::string& head) { return is_host_trace(head) || starts_chakra(head); }

const Registration<Importer> kChakra{importers(), "chakra", {is_execution_trace, import_chakra}, 90};

}  // namespace
}  // namespace stepcast
