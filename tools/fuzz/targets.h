// The parsers that read what others wrote.
#pragma once

#include <span>
#include <string_view>

#include "tools/fuzz/fuzzer.h"

namespace ejk::fuzz {

Target record_target();         ///< a record of the store
Target archive_target();        ///< an archive of records
Target config_target();         ///< a config as JSON
Target recorded_call_target();  ///< a line of recorded calls
Target planned_calls_target();  ///< the planned calls in a program's text
Target environment_target();    ///< a value of an environment variable
Target command_line_target();   ///< ejk's command line
Target call_target();           ///< the flags of ejk that describe a call
Target magic_target();          ///< a test of the fuzzer itself

/// All but the last.
std::span<const Target> targets();
/// InvalidArgument lists the known ones; "magic" is one.
const Target& find_target(std::string_view name);

}  // namespace ejk::fuzz
