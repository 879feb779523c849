#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/model.hpp"

/// Layers and parameters that PyTorch 1.13 reports: tests/models/reference/<model>.{layers,parameters}.csv.
namespace stepcast {

/// Cells of a CSV file of the reference folder, header left out.
inline std::vector<std::vector<std::string>> reference_rows(const std::string& file) {
  const std::string path = std::string(STEPCAST_SOURCE_DIR) + "/tests/models/reference/" + file;
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error(path + " cannot be read");
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(stream, line);
  while (std::getline(stream, line)) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) cells.push_back(cell);
    rows.push_back(cells);
  }
  return rows;
}

inline std::string shape_text(const Shape& shape) {
  std::string text;
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : "x") + std::to_string(shape[i]);
  return text;
}

inline std::vector<std::string> reference_models() {
  return {"simple-cnn", "vgg11-bn-cifar", "resnet18-cifar", "bert-base"};
}

}  // namespace stepcast
