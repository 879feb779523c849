#pragma once

#include <string>
#include <vector>

#include "sim/evidence/lab_report.hpp"

/// What `stepcast lab validate` runs: trainings in virtual clusters, each predicted before it is run.
namespace stepcast {

/// One training in one virtual cluster, one rank per host.
struct LabExperiment {
  std::string name;     ///< of its files: `vgg.ddp-25MiB.lab-star-4-1Gb`
  std::string cluster;  ///< specification: `lab-star:hosts=4,rate=1Gb/s`
  int hosts = 2;
  std::string model;
  int batch = 1;
  std::vector<std::string> options;  ///< of `run` and of `predict`: `--strategy ddp --bucket-cap 25MiB`
  std::string compute = "replayed";
  double link_rate_bytes_per_s = 0.0;  ///< as sold
  bool uniform = true;                 ///< all links of one rate at one switch, all hosts equally fast
};

/// The cluster whose point-to-point calls are all that is measured of communication.
inline constexpr const char* kLabCalibrationCluster = "lab-star:hosts=2,rate=1Gb/s";
inline constexpr double kLabCalibrationRate = 125e6;  ///< bytes per second, as sold

/// How far it lies from the calibration.
std::string distance_of(const LabExperiment& experiment);

/// 79 trainings with replayed compute, and 12 with real compute on two hosts; or 12 quick ones of the former.
std::vector<LabExperiment> lab_matrix(bool quick);

/// A change of cluster or strategy whose effect on the step time is predicted: names of two experiments.
struct LabChange {
  std::string name;
  std::string plain, changed;
};
std::vector<LabChange> lab_changes();

}  // namespace stepcast
