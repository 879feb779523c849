#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "calibration/nccl_calibration.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/evidence/nccl_samples.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("files", po::value<std::vector<std::string>>(),
       "measured collectives of NCCL on one host: nccl-tests' text or JSON (-J), NCCL Inspector's JSON, or "
       "CSV with the columns device, op_name, nccl_dtype, num_gpus, bytes, latency_us")
      ("device", text_value("", "as the files state"), "the GPUs, a name in topologies/devices/devices.yaml")
      ("collective", text_value("", "as the files state"),
       "for text that does not name its test: all_reduce, all_gather, reduce_scatter, alltoall or broadcast");
  // clang-format on
  declare_output(options, "the calibration");
}

/// Reads the samples of one device; the first file decides which.
std::string gather(const po::variables_map& values, std::vector<NcclSample>& samples) {
  const std::string wanted = text_option(values, "device");
  std::string device;
  for (const std::string& file : texts_option(values, "files"))
    for (NcclSample& sample : read_nccl_samples(file, text_option(values, "collective"))) {
      if (sample.device.empty() && wanted.empty())
        throw InputError("{}: the file does not name its GPUs; set --device", sample.where);
      const std::string name = sample.device.empty() ? wanted : device_of(sample);
      if (!wanted.empty() && name != device_model(wanted).name) continue;
      if (device.empty()) device = name;
      if (name != device)
        throw InputError("{}: is of {}, others are of {}; set --device", sample.where, name, device);
      samples.push_back(std::move(sample));
    }
  if (samples.empty()) throw InputError("the files have no collective of device '{}'", wanted);
  return device;
}

ExitCode run(const po::variables_map& values) {
  if (values.count("files") == 0)
    throw UsageError("'import' takes at least one file of measured collectives");
  check_output(values);
  std::vector<NcclSample> samples;
  const std::string device = gather(values, samples);
  Calibration calibration = nccl_calibration(device, samples);
  calibration.context = make_run_context(kCalibrationSchema, command_line());
  for (const std::string& file : texts_option(values, "files"))
    calibration.lineage.push_back(make_ancestor("measured collectives", file));
  if (write_output(values, [&] { return to_file_text(calibration); })) return ExitCode::kDone;
  std::cout << fit_text(calibration.nccl, samples);
  return ExitCode::kDone;
}

const Registration<Command> kImport{
    commands(),
    {.name = "import",
     .description = "Makes a calibration of NCCL from measurements of nccl-tests or NCCL Inspector.",
     .value = {.declare = declare,
               .run = run,
               .positional = "files",
               .usage = "stepcast import FILE... [--device NAME] -o NAME.calibration.json",
               .group = "Predict and compare"},
     .order = 24}};

}  // namespace
}  // namespace stepcast
