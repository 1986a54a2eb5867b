// What stands beside the library where it is installed or built.
#pragma once

#include <string>
#include <vector>

#include "ejkernel/core/export.h"

namespace ejk {

/// Whether every user of the machine may put something into the folder, as into /tmp: what lies there is not looked
/// for by guessing.
bool anyone_can_add_to(const std::string& folder);

/// Folders that may hold bin/, lib/ and share/ of the installation: those above the library's and above the running
/// program's, nearest first, without those that anyone can add to.
std::vector<std::string> installation_prefixes();

/// The archives in share/ejkernel/tables of the first of them that has some, by name: configs that were tuned
/// for the devices they name.
EJK_API std::vector<std::string> shipped_tables();

}  // namespace ejk
