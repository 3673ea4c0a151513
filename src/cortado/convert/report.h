// What a conversion reports of its stages.
#pragma once

#include "cortado/convert/linearize.h"
#include "cortado/convert/stage.h"

namespace cortado {

// The losses before and after a stage, its steps, tokens and seconds.
StageReport report_of(const Stage& stage);

// Writes report.json and report.svg to `folder`. The picture shows the last stage that has losses of several layers.
void write_report(const std::string& folder, const LinearizePlan& plan, const LinearizeResult& result);

}  // namespace cortado
