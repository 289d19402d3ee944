pub mod attention;
pub mod linear;
