// What stands beside the library where it is installed or built.
#pragma once

#include <string>
#include <vector>

#include "ejkernel/core/export.h"

namespace ejk {

/// Folders that may hold bin/, lib/ and share/ of the installation: those above the running program's and above the
/// library's, nearest first.
std::vector<std::string> installation_prefixes();

/// The archives in share/ejkernel/tables of the first of them that has such a folder, by name: configs that were tuned
/// for the devices they name.
EJK_API std::vector<std::string> shipped_tables();

}  // namespace ejk
