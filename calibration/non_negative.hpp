#pragma once

#include <Eigen/Dense>

namespace stepcast {

/// argmin |A x - b| with x >= 0, by Lawson and Hanson's active set. \pre A has a row and a column
Eigen::VectorXd non_negative_least_squares(const Eigen::MatrixXd& a, const Eigen::VectorXd& b);

}  // namespace stepcast
