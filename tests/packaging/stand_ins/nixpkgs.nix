# Stand-ins for what packaging/nix/default.nix.in takes from nixpkgs: evaluates to what it asks of them.
folder: arguments:
let
  package = import (folder + "/default.nix");
  unknown = name: throw "an argument that this stand-in does not have: ${name}";
  nixpkgs = {
    lib.licenses.mit = { spdxId = "MIT"; };
    stdenv.mkDerivation = attributes: attributes;
    fetchurl = { url, sha256 }: { inherit url sha256; };
    cmake = "cmake";
    ninja = "ninja";
  };
  # As callPackage: by the names of its arguments, those without a default.
  wanted = builtins.functionArgs package;
  given = builtins.mapAttrs (name: _: nixpkgs.${name} or (unknown name)) (removeAttrs wanted (builtins.filter (n: wanted.${n}) (builtins.attrNames wanted)));
in
package (given // arguments)
