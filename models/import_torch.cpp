#include "core/importer.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "models/exported_program.hpp"
#include "models/model.hpp"
#include "models/model_file.hpp"

/// Imports archives of PyTorch: programs of torch.export become model files; TorchScript is described by
/// `stepcast measure`, which runs it.
namespace stepcast {
namespace {

bool is_archive(const std::string& head) { return head.starts_with("PK\x03\x04"); }

Imported import_archive(const std::vector<std::string>& paths, const ImportTexts& /*none*/) {
  const std::string& path = paths.front();
  const std::string members = joined(archive_members(path));
  Imported imported;
  if (contains_any(members, {"/code/"})) {
    imported.understood.emplace_back("TorchScript, which LibTorch runs");
    imported.obstacles.push_back(fmt::format(
        "'stepcast measure --model {} --input 32x3x224x224' describes it in {}.yaml, and measures it", path,
        path));
    return imported;
  }
  if (contains_any(members, {"data.pkl"}))
    throw InputError(
        "{}: contains tensors without a program, from torch.save; torch.export.save and torch.jit.save keep "
        "one",
        path);
  const ExportedProgram program = read_exported(exported_json(path), path);
  imported.text = to_text(program.model);
  const Model model = model_from(YamlNode::parse(imported.text, path), {.file = path});
  imported.understood.push_back(fmt::format("{}: {:.4g} flop forward and {} of parameters per sample",
                                            program.model.description, model.forward_flop().count(),
                                            to_text(model.parameter_bytes())));
  imported.understood.push_back("parts " + joined(transformed(model.segments, &Segment::name)));
  imported.assumed = program.assumed;
  return imported;
}

const Registration<Importer> kTorch{importers(), "torch", {is_archive, import_archive}, 1};

}  // namespace
}  // namespace stepcast
